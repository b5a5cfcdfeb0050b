"""What the OpenAPI document says of answers: the attributes of each resource with their types.

They are not listed for it. What a request may say of a resource has its types in the body's model, what is only shown
has them in the ``TypedDict`` of the function that shows it, where mypy holds both together; here they are put in one.
Nothing is required of an answer, as ``select`` may leave out anything, and nothing is in it that is not documented.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model
from typing_extensions import TypedDict

from gateway.admin.lazy_route import Responses
from gateway.admin.semp.envelope import Answer


class InVpn(TypedDict):
    """What every resource of a Message VPN has."""

    msgVpnName: str


def resource(name: str, *sources: type) -> type:
    """A type of this name with the attributes of all ``sources``: models of bodies, and typed dictionaries."""
    found: dict[str, Any] = {}
    for source in sources:
        found |= (
            _of_body(source) if issubclass(source, BaseModel) else get_type_hints(source, include_extras=True)
        )
    make: Any = TypedDict  # mypy knows it with attributes that are written down alone
    made: type = make(name, found, total=False)
    made.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    return made


def one(kind: type) -> Callable[[], Responses]:
    """The answer is one of these."""
    return lambda: _answer(kind.__name__, {"data": kind, "links": dict[str, str]})


def listed(kind: type) -> Callable[[], Responses]:
    """The answer is a page of these."""
    return lambda: _answer(f"{kind.__name__}List", {"data": list[kind], "links": list[dict[str, str]]})  # type: ignore[valid-type]


def _answer(name: str, fields: Mapping[str, Any]) -> Responses:
    types: Any = {field: (kind, ...) for field, kind in fields.items()}
    return {200: {"model": create_model(f"{name}Answer", __base__=Answer, **types)}}


def done() -> Responses:
    """The answer says no more than that it is done."""
    return _answer("Done", {"data": None, "links": dict[str, str]})


def _of_body(model: type[BaseModel]) -> dict[str, Any]:
    return {
        name: Annotated[_without_none(info.annotation), Field(description=info.description)]
        for name, info in model.model_fields.items()
    }


def _without_none(kind: Any) -> Any:
    """A body leaves out what it does not say; an answer says everything."""
    if get_origin(kind) in (Union, UnionType):
        return reduce(or_, (part for part in get_args(kind) if part is not NoneType))
    return kind
