"""Merging request options: what a hook or a caller sets wins, field by field."""

from dataclasses import fields, replace

from .base import StreamOptions


def merge_options(base: StreamOptions, patch: StreamOptions) -> StreamOptions:
    """Fields of `patch` that differ from the default replace those of `base`; headers merge by name."""
    defaults = StreamOptions()
    changed = {
        f.name: getattr(patch, f.name) for f in fields(patch) if getattr(patch, f.name) != getattr(defaults, f.name)
    }
    if patch.headers is not None and base.headers is not None:
        changed["headers"] = {**base.headers, **patch.headers}
    return replace(base, **changed)
