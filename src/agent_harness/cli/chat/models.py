"""The models of one conversation: `/model` adds to them, and the session's own stay known."""

from ...providers.base import Model, Models, Provider
from ...types.state import ModelRef
from ..models import Chosen


class ChosenModels:
    """A `Models` over everything that was chosen so far, the newest first."""

    def __init__(self, chosen: Chosen) -> None:
        self._chosen = [chosen]

    @property
    def newest(self) -> Chosen:
        """The last choice."""
        return self._chosen[0]

    def add(self, chosen: Chosen) -> None:
        """Make a choice known."""
        self._chosen.insert(0, chosen)

    def find(self, ref: ModelRef) -> Model | None:
        """See `Models`."""
        found = self._of(ref)
        return None if found is None else found[1]

    def provider(self, model: Model) -> Provider:
        """See `Models`."""
        found = self._of(model.ref)
        if found is None:
            raise LookupError(f"no provider for {model}")
        return found[0].provider(found[1])

    def _of(self, ref: ModelRef) -> tuple[Models, Model] | None:
        for chosen in self._chosen:
            if chosen.model.ref == ref:
                return chosen.models, chosen.model
        for chosen in self._chosen:
            model = chosen.models.find(ref)
            if model is not None:
                return chosen.models, model
        return None
