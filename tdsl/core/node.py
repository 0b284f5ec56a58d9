"""IR nodes: frozen slotted dataclasses with a cached hash, and traversals of their trees."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any, TypeVar, dataclass_transform

from tdsl.core.source import Loc

C = TypeVar("C", bound=type)
N = TypeVar("N", bound="Node")
K = TypeVar("K")
V = TypeVar("V")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: C | None = None, *, slots: bool = True) -> Any:
    """A class decorator for immutable values, compared, hashed and printed by their fields.

    As `dataclass(frozen=True, slots=slots)`, whose functions work on it, but construction takes a third of
    the time: fields are set while the object is of a mutable subclass, and __eq__, __hash__, __repr__ and
    __reduce__ are shared by all classes.

    >>> @frozen
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> Point(3), Point(3) == Point(3, 0), dataclasses.replace(Point(3), y=4)
    (Point(x=3, y=0), True, Point(x=3, y=4))
    >>> Point(3).x = 4
    Traceback (most recent call last):
    dataclasses.FrozenInstanceError: cannot assign to field 'x'
    """
    if cls is None:
        return lambda cls: frozen(cls, slots=slots)
    namespace = cls.__dict__
    cls.__doc__ = cls.__doc__ or cls.__name__  # a dataclass would derive one from the signature
    new: Any = dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    fields = dataclasses.fields(new)
    new._compared = staticmethod(_getter([f.name for f in fields if f.compare]))
    new._shown = tuple(f.name for f in fields if f.repr)
    shared = {"__eq__": _equal, "__hash__": _hash, "__repr__": _repr, "__reduce__": _reduce}
    for name, method in shared.items():
        if name not in namespace or namespace[name] is None:
            setattr(new, name, method)
    new.__setattr__, new.__delattr__ = _refuse, _refuse
    new.__new__ = _compile_on_first_use(new, fields)
    return new  # the same class, remade if it has slots


def _compile_on_first_use(new: Any, fields: tuple[Any, ...]) -> Any:
    """A `__new__` that compiles the real constructor on the first call and replaces itself by it."""

    def __new__(cls: Any, *arguments: Any, **named: Any) -> Any:
        mutable = {"__slots__": (), "__setattr__": object.__setattr__}
        new.__new__ = _constructor(fields, type(new.__name__, (new,), mutable), new)
        return new.__new__(cls, *arguments, **named)

    return __new__


def _constructor(fields: tuple[Any, ...], mutable: type, cls: type) -> Any:
    """The `__new__` of a class with these fields; `mutable` is its mutable subclass."""
    names = {
        "__name__": __name__,
        "__new": object.__new__,
        "__mutable": mutable,
        "__missing": MISSING,
    }
    positional, keyword, sets = ["cls"], ["*"], []
    for f in fields:
        default, value = "", f.name
        if f.default_factory is not MISSING:
            names[f"{f.name}_"], default = f.default_factory, "=__missing"
            value = f"{f.name}_() if {f.name} is __missing else {f.name}" if f.init else f"{f.name}_()"
        elif f.default is not MISSING:
            names[f"{f.name}_"], default = f.default, f"={f.name}_"
            value = f.name if f.init else f"{f.name}_"
        if f.init:
            (keyword if f.kw_only else positional).append(f"{f.name}{default}")
        if f.init or default:  # others are set by __post_init__
            sets.append(f"self.{f.name} = {value}")
    sets.append("self.__class__ = cls")
    if hasattr(cls, "__post_init__"):
        sets.append("self.__post_init__()")
    head = ", ".join(positional + keyword if len(keyword) > 1 else positional)
    body = f"self = __new(__mutable); {'; '.join(sets)}; return self"
    exec(f"def __new__({head}): {body}\n", names)
    return names["__new__"]


def _getter(names: list[str]) -> Callable[[Any], Any]:
    return operator.attrgetter(*names) if names else lambda _: ()


def _equal(self: Any, other: object) -> Any:
    if self is other:
        return True
    if self.__class__ is not other.__class__:
        return NotImplemented
    return self._compared(self) == self._compared(other)  # type: ignore[attr-defined]  # same class


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _repr(self: Any) -> str:
    shown = ", ".join([f"{name}={getattr(self, name)!r}" for name in self._shown])
    return f"{self.__class__.__qualname__}({shown})"


def _reduce(self: Any) -> tuple[Any, ...]:
    values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}
    return _construct, (self.__class__, values)


def _construct(cls: Any, values: dict[str, Any]) -> Any:
    return cls(**values)


_known_hash = operator.attrgetter("_hash")


def _refuse(self: Any, name: str, value: object = None) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


@frozen
class Node:
    """The base of all IR nodes. `loc` is the location in the user's source; equality ignores it."""

    loc: Loc | None = field(default=None, kw_only=True, compare=False, repr=False)
    _hash: int | None = field(default=None, init=False, compare=False, repr=False)  # computed once
    # One object for all nodes that were compared and found equal: a token of their equivalence class.
    _class_token: object = field(default=None, init=False, compare=False, repr=False)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def node(cls: C) -> C:
    """A class decorator for IR nodes: frozen, slotted, structural equality, hash computed once.

    Without the cache the hash of a shared DAG costs time exponential in its depth.
    """
    new: Any = frozen(cls)
    structural, set_hash = new.__hash__, new._hash.__set__
    new._custom_eq = new.__eq__ if "__eq__" in cls.__dict__ else None
    new._values = staticmethod(_values_of([f.name for f in dataclasses.fields(new) if f.compare]))

    def __hash__(self: Any) -> int:
        value: int | None = self._hash
        if value is None:
            if None in map(_known_hash, self._children(self)):
                _hash_descendants(self)
            value = structural(self)
            set_hash(self, value)
        return value

    def __eq__(self: Any, other: Any) -> bool:
        if self is other:
            return True
        if self.__class__ is not other.__class__:
            return False
        if (self._hash or hash(self)) != (other._hash or hash(other)):
            return False
        token = self._class_token
        return (token is not None and token is other._class_token) or _is_same_structure(self, other)

    def children_of(n: Any) -> tuple[Node, ...]:
        new._children = staticmethod(_children_of(new))  # in place of this function, on its first use
        return new._children(n)  # type: ignore[no-any-return]

    new.__hash__, new.__eq__, new.__reduce__ = __hash__, __eq__, _reduce_graph
    new._fields = tuple(f.name for f in dataclasses.fields(new) if f.init and f.name != "loc")
    new._children = staticmethod(children_of)
    return new  # type: ignore[no-any-return]  # the same class


class _RowIndex(int):
    """The index of a node in the rows of a pickled graph."""


def _reduce_graph(root: Any) -> tuple[Any, ...]:
    """Pickle a graph as a list of rows, children before parents, so that pickle does not recurse."""
    rows: list[tuple[Any, ...]] = []
    places: dict[int, _RowIndex] = {}
    for n in post_order(root):
        values = [_replaced(getattr(n, name), Node, lambda c: places[id(c)]) for name in n._fields]  # type: ignore[attr-defined]  # set by @node
        places[id(n)] = _RowIndex(len(rows))
        rows.append((n.__class__, n.loc, values))
    return _from_rows, (rows,)


def _from_rows(rows: list[tuple[Any, ...]]) -> Node:
    nodes: list[Node] = []
    for cls, loc, values in rows:
        fields = [_replaced(v, _RowIndex, nodes.__getitem__) for v in values]
        nodes.append(cls(**dict(zip(cls._fields, fields, strict=True)), loc=loc))
    return nodes[-1]


def _replaced(value: Any, cls: type, new: Callable[[Any], Any]) -> Any:
    """The value of a field with every instance `x` of `cls` in it, also in tuples, replaced by `new(x)`."""
    if isinstance(value, cls):
        return new(value)
    return tuple([_replaced(x, cls, new) for x in value]) if isinstance(value, tuple) else value


def _hash_descendants(n: Any) -> None:
    """Compute the hashes of all nodes below `n`, children first, without recursion."""
    stack = [c for c in n._children(n) if c._hash is None]
    while stack:
        missing = [c for c in stack[-1]._children(stack[-1]) if c._hash is None]
        if missing:
            stack += missing
        else:
            hash(stack.pop())


def _values_of(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """The function that returns the values of these fields as a tuple."""
    get = _getter(names)
    return get if len(names) != 1 else lambda n: (get(n),)


def _is_same_structure(a: Any, b: Any) -> bool:
    """True if two nodes of one class and one hash have equal structure; each pair inside is compared once.

    There is no recursion. Equal nodes get the same `_class_token`, so they are never compared again.
    """
    mark = Node._class_token.__set__  # type: ignore[attr-defined]  # a slot descriptor
    if a._custom_eq is not None:
        return bool(a._custom_eq(b))
    if _has_same_fields(a, b):
        mark(a, token := a._class_token or b._class_token or object())
        mark(b, token)
        return True
    pairs: dict[tuple[int, int], tuple[Any, Any]] = {}
    stack = [((a,), (b,))]  # pairs of tuples of equal length
    while stack:
        for x, y in zip(*stack.pop(), strict=True):
            if x is y:
                continue
            if isinstance(x, Node):
                if x.__class__ is not y.__class__:
                    return False
                if (x._hash or hash(x)) != (y._hash or hash(y)):
                    return False
                if x._custom_eq is not None:  # type: ignore[attr-defined]  # set by @node
                    if not x._custom_eq(y):  # type: ignore[attr-defined]
                        return False
                elif (x._class_token is None or x._class_token is not y._class_token) and (
                    id(x),
                    id(y),
                ) not in pairs:
                    pairs[id(x), id(y)] = x, y
                    stack.append((x._values(x), y._values(y)))  # type: ignore[attr-defined]
            elif x.__class__ is tuple and y.__class__ is tuple:
                if len(x) != len(y):
                    return False
                stack.append((x, y))
            elif x != y:
                return False
    for x, y in pairs.values():
        token = x._class_token or y._class_token or object()
        mark(x, token)
        mark(y, token)
    return True


def _has_same_fields(a: Any, b: Any) -> bool:
    """True if the fields of two nodes are known to be equal: a fast path that covers most nodes."""
    for x, y in zip(a._values(a), b._values(b), strict=True):
        if x is y:
            continue
        if isinstance(x, Node):
            if x._class_token is None or x._class_token is not y._class_token:
                return False
        elif x.__class__ is tuple or x != y:
            return False
    return True


def _children_of(cls: Any) -> Callable[[Any], tuple[Node, ...]]:
    """The function that returns the children of a node of a class; the speed of traversals depends on it."""
    types = {name: str(cls.__annotations__[name]) for name in cls._fields}
    holders = [name for name, t in types.items() if _may_hold_nodes(t)]
    if not holders:
        return lambda n: ()
    if all(types[name] in _CHILD_TEXTS for name in holders):
        if len(holders) == 1 and types[holders[0]] == "tuple[Expr, ...]":
            return operator.attrgetter(holders[0])
        inside = ", ".join([_CHILD_TEXTS[types[name]].format(f"n.{name}") for name in holders])
        return eval(f"lambda n: ({inside},)")  # type: ignore[no-any-return]  # quicker than a loop

    def collect(n: Any) -> tuple[Node, ...]:
        inside: list[Node] = []
        for name in holders:
            value = getattr(n, name)
            if isinstance(value, Node):
                inside.append(value)
            elif isinstance(value, tuple):
                inside += _in_tuple(value)
        return tuple(inside)

    return collect


# The text that adds the nodes of a field to a tuple display, by the annotation of the field.
_CHILD_TEXTS = {
    "Expr": "{0}",
    "Stmt": "{0}",
    "tuple[Expr, ...]": "*{0}",
    "Expr | None": "*(() if {0} is None else ({0},))",
    "Stmt | None": "*(() if {0} is None else ({0},))",
    "tuple[Expr | None, Expr | None]": "*[x for x in {0} if x is not None]",
}
_LEAF_TYPES = ("str", "int", "bool", "float", "DType", "Number")


def _may_hold_nodes(annotation: str) -> bool:
    parts = annotation.replace("tuple[", " ").replace("]", " ").replace(",", " ").replace("|", " ")
    return not all(part in (*_LEAF_TYPES, "...", "None") for part in parts.split())


def children(n: Node) -> tuple[Node, ...]:
    """The nodes directly inside `n`, in field order."""
    return n._children(n)  # type: ignore[attr-defined, no-any-return]  # set by @node


def _in_tuple(items: tuple[Any, ...]) -> Iterator[Node]:
    for item in items:
        if isinstance(item, Node):
            yield item
        elif isinstance(item, tuple):
            yield from _in_tuple(item)


def map_children(n: N, f: Callable[[Node], Node]) -> N:
    """`n` with each child replaced by `f(child)`; `n` itself when nothing changed."""
    old = n._children(n)  # type: ignore[attr-defined]  # set by @node
    if not old:
        return n
    new = [f(child) for child in old]
    if all(map(operator.is_, old, new)):
        return n
    following = iter(new)
    values: list[Any] = []
    for name in n._fields:  # type: ignore[attr-defined]  # set by @node
        value = getattr(n, name)
        if isinstance(value, Node):
            value = next(following)
        elif value.__class__ is tuple:
            value = _replaced(value, Node, lambda _: next(following))
        values.append(value)
    return n.__class__(*values, loc=n.loc)


def post_order(*roots: Node) -> Iterator[Node]:
    """Each distinct node once, children before parents; iterative, so depth does not matter."""
    seen: set[int] = set()
    stack: list[Node | None] = list(reversed(roots))
    while stack:
        n = stack.pop()
        if n is None:  # the children of the next node on the stack are done
            n = stack.pop()
            if id(n) not in seen:
                seen.add(id(n))
                yield n  # type: ignore[misc]  # a node lies under each None
        elif id(n) not in seen:
            inside = n._children(n)  # type: ignore[attr-defined]  # set by @node
            if inside:
                stack += (n, None, *inside[::-1])
            else:
                seen.add(id(n))
                yield n


class Memo(dict[K, V]):
    """A cache as a dict, cleared when it reaches `_MAX_ENTRIES` entries."""

    __slots__ = ()

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= _MAX_ENTRIES:
            self.clear()
        dict.__setitem__(self, key, value)


_MAX_ENTRIES = 200_000


def memoised(
    memo: dict[K, V], root: K, value: Callable[[Any], V],
    parts: Callable[[Any], Iterable[Any]] = children,
) -> V:  # fmt: skip
    """`value(root)`, cached in `memo`; values of `parts` come first, so that `value` does not recurse."""
    if root in memo:
        return memo[root]
    if len(memo) >= _MAX_ENTRIES:
        memo.clear()
    stack = [root]
    while True:
        n = stack[-1]
        missing = [c for c in parts(n) if c not in memo]
        if missing:
            stack += missing
            continue
        result = value(n)
        dict.__setitem__(memo, n, result)
        stack.pop()
        if not stack:
            return result


def pre_order(*roots: Node, inside: Callable[[Node], Sequence[Node]] = children) -> Iterator[Node]:
    """Each distinct node once, parents before children in field order; `inside` returns those to visit."""
    seen: set[int] = set()
    stack = list(reversed(roots))
    while stack:
        n = stack.pop()
        if id(n) not in seen:
            seen.add(id(n))
            yield n
            stack += reversed(inside(n))


def outermost(root: Node, is_match: Callable[[Node], bool]) -> Iterator[Node]:
    """Each distinct node with `is_match(node)` that is reached through no other such node, in pre-order."""
    return filter(is_match, pre_order(root, inside=lambda n: () if is_match(n) else children(n)))


def transform(root: N, f: Callable[[Node], Node], done: dict[int, Node] | None = None) -> N:
    """Rebuild a tree bottom-up: `f` sees each node after its children were replaced.

    A node shared by several parents is visited once. Nodes shared by several roots remain shared in the
    results if the same `done` is passed for each; its keys are `id`s of old nodes, which must live as long.
    """
    new: dict[int, Node] = {} if done is None else done
    for n in post_order(root):
        if id(n) not in new:
            new[id(n)] = f(map_children(n, lambda child: new[id(child)]))
    return new[id(root)]  # type: ignore[return-value]  # f keeps the kind of the root
