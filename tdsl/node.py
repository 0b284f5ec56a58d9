"""What every IR node is: a frozen, slotted dataclass with a cached hash, and how to walk a tree of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

from tdsl.source import Loc

C = TypeVar("C", bound=type)
N = TypeVar("N", bound="Node")


class _Hashed:
    __slots__ = ("_hash",)  # a cache, not a field: neither compared nor pickled


@dataclass(frozen=True, slots=True, eq=False)
class Node(_Hashed):
    """The base of all IR nodes. `loc` is where the user wrote it; it takes no part in equality."""

    loc: Loc | None = field(default=None, kw_only=True, compare=False, repr=False)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def node(cls: C) -> C:
    """Make a class a node: frozen, slotted, structural equality, hash computed once.

    Without the cache the hash of a shared DAG costs time exponential in its depth.
    """
    new: Any = dataclass(frozen=True, slots=True)(cls)
    structural, equal = new.__hash__, new.__eq__

    def __hash__(self: Any) -> int:
        try:
            return self._hash  # type: ignore[no-any-return]  # a slot set below
        except AttributeError:
            value: int = structural(self)
            object.__setattr__(self, "_hash", value)
            return value

    def __eq__(self: Any, other: object) -> Any:
        if self is other:
            return True
        if self.__class__ is not other.__class__ or hash(self) != hash(other):
            return False
        return equal(self, other)

    new.__hash__, new.__eq__ = __hash__, __eq__
    new._child_fields = tuple(
        f.name for f in dataclasses.fields(new) if f.name != "loc" and _may_hold_nodes(str(f.type))
    )
    return new  # type: ignore[no-any-return]  # the same class, remade with slots


_PLAIN = ("str", "int", "bool", "float", "DType")


def _may_hold_nodes(annotation: str) -> bool:
    parts = annotation.replace("tuple[", " ").replace("]", " ").replace(",", " ").replace("|", " ")
    return not all(part in (*_PLAIN, "...", "None") for part in parts.split())


def children(n: Node) -> Iterator[Node]:
    """The nodes directly inside `n`, in field order."""
    for name in n._child_fields:  # type: ignore[attr-defined]  # set by @node
        value = getattr(n, name)
        if isinstance(value, Node):
            yield value
        elif isinstance(value, tuple):
            yield from _in_tuple(value)


def _in_tuple(items: tuple[Any, ...]) -> Iterator[Node]:
    for item in items:
        if isinstance(item, Node):
            yield item
        elif isinstance(item, tuple):
            yield from _in_tuple(item)


def map_children(n: N, f: Callable[[Node], Node]) -> N:
    """`n` with each child replaced by `f(child)`; `n` itself when nothing changed."""
    changes = {}
    for name in n._child_fields:  # type: ignore[attr-defined]  # set by @node
        old = getattr(n, name)
        new = _map_value(old, f)
        if new is not old:
            changes[name] = new
    return dataclasses.replace(n, **changes) if changes else n


def _map_value(value: Any, f: Callable[[Node], Node]) -> Any:
    if isinstance(value, Node):
        return f(value)
    if isinstance(value, tuple):
        new = tuple(_map_value(item, f) for item in value)
        return value if all(a is b for a, b in zip(new, value, strict=True)) else new
    return value


def post_order(*roots: Node) -> Iterator[Node]:
    """Each distinct node once, children before parents; iterative, so depth does not matter."""
    seen: set[int] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        n, ready = stack.pop()
        if id(n) in seen:
            continue
        if ready:
            seen.add(id(n))
            yield n
        else:
            stack.append((n, True))
            stack += [(child, False) for child in reversed(list(children(n)))]


def transform(root: N, f: Callable[[Node], Node]) -> N:
    """Rebuild a tree bottom-up: `f` sees each node after its children were replaced.

    A node shared by several parents is visited once.
    """
    done: dict[int, Node] = {}
    for n in post_order(root):
        done[id(n)] = f(map_children(n, lambda child: done[id(child)]))
    return done[id(root)]  # type: ignore[return-value]  # f keeps the kind of the root
