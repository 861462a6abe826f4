"""`@tool`: a typed function becomes an `AgentTool` (decisions section 8)."""

import inspect
import re
import types
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, Union, cast, get_args, get_origin, get_type_hints, overload

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_json

from ..types.json import InvalidJson, JsonValue, canon, replace_surrogates
from ..types.messages import TextContent
from ..types.records import Replay
from ..types.tools import AgentTool, AgentToolResult, ExecutionMode, ToolInvocation

ToolSource: TypeAlias = Callable[..., object]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Strict, and read as JSON: "12" is no integer and 1 no boolean, while a list is a tuple and text an enum or a date.
_STRICT = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=False, protected_namespaces=())


class ToolDeclarationError(TypeError):
    """The function cannot be a tool as it is declared; raised where it is decorated."""


class _Schema(GenerateJsonSchema):
    """Without the titles that pydantic makes out of field names: the model pays for every token."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # pydantic's own argument type is internal to it
        return False


@dataclass(frozen=True, slots=True)
class _Signature:
    """What was learned about the function, once."""

    arguments: type[BaseModel]
    names: Mapping[str, str]  # model field -> parameter
    invocation: str | None  # the parameter that receives the ToolInvocation


@overload
def tool(function: ToolSource, /) -> AgentTool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    replay: Replay = "never",
    execution_mode: ExecutionMode = "parallel",
    timeout_ms: int | None = None,
    label: str | None = None,
) -> Callable[[ToolSource], AgentTool]: ...
def tool(
    function: ToolSource | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    replay: Replay = "never",
    execution_mode: ExecutionMode = "parallel",
    timeout_ms: int | None = None,
    label: str | None = None,
) -> AgentTool | Callable[[ToolSource], AgentTool]:
    """Turn a typed `async def` or `def` function into a tool. A `def` tool runs in a worker thread.

    The model sees the function's name, its docstring and a JSON Schema of its parameters, each documented by
    `Annotated[..., Field(description="...")]`. Arguments are validated strictly before the function is called. A
    parameter annotated `ToolInvocation` is not part of the schema: it receives the invocation (signal, updates,
    context). The function returns an `AgentToolResult`, text, or a JSON value, which the model sees as JSON text.
    Whatever it raises becomes an error result.

    `replay="safe"` promises that running the call again with the same arguments, at any later time, does no harm:
    only then does recovery repeat a call whose outcome is unknown. `timeout_ms` bounds one call.

    Raises:
        ToolDeclarationError: no docstring, an unannotated or variadic parameter, a type without a JSON Schema, ...
    """
    caller = inspect.currentframe()
    caller = caller.f_back if caller is not None else None
    caller_names = dict(caller.f_locals) if caller is not None else {}  # textual annotations may name local types
    del caller

    def decorate(source: ToolSource) -> AgentTool:
        label_of = getattr(source, "__name__", None) or type(source).__name__
        chosen = name if name is not None else label_of
        _check_options(chosen, replay, execution_mode, timeout_ms)
        if not callable(source) or inspect.isclass(source):
            raise ToolDeclarationError(f"tool {chosen!r}: a function is needed, got {type(source).__name__}")
        if inspect.isgeneratorfunction(source) or inspect.isasyncgenfunction(source):
            raise ToolDeclarationError(f"tool {chosen!r}: a generator cannot be a tool; report progress with `update`")
        text = description if description is not None else _docstring(source)
        if not text or not text.strip():
            raise ToolDeclarationError(f"tool {chosen!r}: write a docstring, it is what the model knows about the tool")
        signature = _read_signature(source, chosen, caller_names)

        def validate(args: dict[str, JsonValue]) -> dict[str, JsonValue]:
            _parse(signature, args)
            return args

        async def execute(invocation: ToolInvocation) -> AgentToolResult:
            awaitable = cast("Awaitable[object]", source(**_bind(signature, invocation)))
            return _to_result(chosen, await awaitable)

        def execute_blocking(invocation: ToolInvocation) -> AgentToolResult:
            return _to_result(chosen, source(**_bind(signature, invocation)))

        is_async = inspect.iscoroutinefunction(_routine(source))
        return AgentTool(
            name=chosen,
            description=inspect.cleandoc(text),
            parameters=_json_schema(signature, chosen),
            execute=execute if is_async else None,
            execute_blocking=None if is_async else execute_blocking,
            validate=validate,
            replay=replay,
            execution_mode=execution_mode,
            timeout_ms=timeout_ms,
            label=label,
        )

    return decorate if function is None else decorate(function)


def _routine(source: ToolSource) -> object:
    """The function or method behind a callable object."""
    return source if inspect.isroutine(source) else getattr(source, "__call__", source)  # noqa: B004 - which, not whether


def _docstring(source: ToolSource) -> str | None:
    return inspect.getdoc(source) or inspect.getdoc(_routine(source))


def _check_options(name: str, replay: str, execution_mode: str, timeout_ms: object) -> None:
    if not _NAME.fullmatch(name):
        raise ToolDeclarationError(f"tool name {name!r}: use 1 to 64 letters, digits, '_' or '-'; pass name=...")
    if replay not in ("never", "safe"):
        raise ToolDeclarationError(f"tool {name!r}: replay is 'never' or 'safe', not {replay!r}")
    if execution_mode not in ("parallel", "sequential"):
        raise ToolDeclarationError(f"tool {name!r}: execution_mode is 'parallel' or 'sequential'")
    if timeout_ms is not None and (type(timeout_ms) is not int or timeout_ms <= 0):
        raise ToolDeclarationError(f"tool {name!r}: timeout_ms is a positive number of milliseconds")


def _read_signature(source: ToolSource, name: str, caller_names: Mapping[str, object]) -> _Signature:
    try:
        hints = get_type_hints(_routine(source), localns=dict(caller_names), include_extras=True)
    except (NameError, TypeError) as error:
        raise ToolDeclarationError(f"tool {name!r}: an annotation cannot be evaluated: {error}") from None
    fields: dict[str, Any] = {}  # create_model's own shape: name -> (annotation, default)
    names: dict[str, str] = {}
    invocation: str | None = None
    for parameter in inspect.signature(source).parameters.values():
        where = f"tool {name!r}, parameter {parameter.name!r}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ToolDeclarationError(f"{where}: *args and **kwargs have no schema")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ToolDeclarationError(f"{where}: arguments are passed by name, so it cannot be positional-only")
        if parameter.name not in hints:
            raise ToolDeclarationError(f"{where}: annotate it")
        annotation: object = hints[parameter.name]
        if _is_invocation(annotation):
            if invocation is not None:
                raise ToolDeclarationError(f"{where}: {invocation!r} receives the invocation already")
            invocation = parameter.name
            continue
        if any(isinstance(extra, FieldInfo) and extra.alias for extra in get_args(annotation)[1:]):
            raise ToolDeclarationError(f"{where}: rename it instead of giving it an alias")
        # Field names of our own: a parameter may be called `copy` or `schema` without shadowing a model's attribute.
        field = f"argument{len(fields)}"
        default: object = ... if parameter.default is parameter.empty else parameter.default
        fields[field] = (annotation, Field(default, alias=parameter.name))
        names[field] = parameter.name
    try:
        model = create_model(f"{name} arguments", __config__=_STRICT, **fields)
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError, AttributeError) as error:
        raise ToolDeclarationError(f"tool {name!r}: {_first_line(error)}") from None
    for field, info in model.model_fields.items():
        if not info.is_required():
            _check_default(f"tool {name!r}, parameter {names[field]!r}", fields[field][0], info.get_default())
    return _Signature(model, names, invocation)


def _check_default(where: str, annotation: Any, default: object) -> None:
    # The schema shows the default, so it has to be JSON, and one that the model could have sent itself.
    try:
        to_json(default)
        TypeAdapter[object](annotation).validate_python(default)
    except (PydanticSerializationError, ValidationError) as error:
        raise ToolDeclarationError(f"{where}: the default does not fit: {_first_line(error)}") from None


def _is_invocation(annotation: object) -> bool:
    if get_origin(annotation) is Annotated:
        return _is_invocation(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return any(_is_invocation(member) for member in get_args(annotation))
    return annotation is ToolInvocation


def _json_schema(signature: _Signature, name: str) -> dict[str, JsonValue]:
    try:
        schema = signature.arguments.model_json_schema(schema_generator=_Schema)
    except (PydanticUserError, ValueError) as error:
        raise ToolDeclarationError(f"tool {name!r}: no JSON Schema for its parameters: {_first_line(error)}") from None
    schema.pop("title", None)
    schema.pop("description", None)
    schema.setdefault("properties", {})
    return cast("dict[str, JsonValue]", canon(schema))


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0]


def _parse(signature: _Signature, args: dict[str, JsonValue]) -> BaseModel:
    try:
        return signature.arguments.model_validate_json(orjson.dumps(canon(args)), strict=True)
    except InvalidJson as error:
        raise ValueError(f"invalid arguments: {error}") from None
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        told = "; ".join(f"{_place(problem['loc'])}: {problem['msg']}" for problem in problems[:8])
        more = f" (and {len(problems) - 8} more)" if len(problems) > 8 else ""
        raise ValueError(f"invalid arguments: {told}{more}") from None


def _place(location: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".") or "arguments"


def _bind(signature: _Signature, invocation: ToolInvocation) -> dict[str, object]:
    parsed = _parse(signature, invocation.args)
    bound = {parameter: getattr(parsed, field) for field, parameter in signature.names.items()}
    if signature.invocation is not None:
        bound[signature.invocation] = invocation
    return bound


def _to_result(name: str, value: object) -> AgentToolResult:
    if isinstance(value, AgentToolResult):
        return value
    if isinstance(value, str):
        return text_result(value)
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError(f"tool {name!r} is not declared `async def` but returned a coroutine, which did not run")
    try:
        return text_result(orjson.dumps(canon(_clean(value))).decode())
    except InvalidJson as error:
        raise TypeError(f"tool {name!r} ran, but what it returned cannot be shown: {error}") from None


def _clean(value: object) -> object:
    # Only text is repaired; everything else that is not JSON is the tool author's error and is named by canon().
    if isinstance(value, str):
        return replace_surrogates(value)
    if type(value) is list:
        return [_clean(item) for item in cast("list[object]", value)]
    if type(value) is dict:
        return {_clean(key): _clean(item) for key, item in cast("dict[object, object]", value).items()}
    return value


def text_result(text: str, details: JsonValue = None) -> AgentToolResult:
    """A result of one text part; lone surrogates become U+FFFD (decisions section 4)."""
    return AgentToolResult(content=(TextContent(text=replace_surrogates(text)),), details=details)
