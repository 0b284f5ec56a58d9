"""Exceptions for errors of users: a `TdslError` has a message, the user's source line, and a hint."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

import numpy as np

from tdsl.core.source import Loc, here

Related = tuple[Loc | None, str]


class TdslError(Exception):
    """An error in a tdsl program or call, shown with its location in the user's source.

    `code` is stable from release to release; the text is rendered from the message, `loc`, `label`, `related`
    and `hint` when it is asked for. A `hint` may be a function without arguments, called then.
    """

    code = "tdsl"

    def __init__(
        self,
        message: str,
        *,
        loc: Loc | None = None,
        label: str = "",
        related: Iterable[Related] = (),
        hint: str | Callable[[], str] = "",
    ) -> None:
        self.message, self.loc, self.label, self._hint = message, loc, label, hint
        self.related = tuple(related)
        Exception.__init__(self, message)
        self._first_args = self.args

    @property
    def hint(self) -> str:
        """What the user can do about it."""
        if not isinstance(self._hint, str):
            self._hint = self._hint()
        return self._hint

    @property
    def id(self) -> str:
        """The identifier of the message, such as TD0042, which `tdsl explain` takes; stable as `code` is."""
        from tdsl.core.error_ids import id_of  # read when an error is shown, not when tdsl is imported

        return id_of(self.code, self.message)

    def __str__(self) -> str:
        if self.args != self._first_args:  # replaced by a handler, as those of any exception may be
            return Exception.__str__(self)
        return render(self)

    def __reduce__(self) -> Any:
        _ = self.hint  # a text in place of a function, which cannot be pickled
        return Exception.__reduce__(self)


class DefinitionError(TdslError, ValueError):
    """A func, tensor or operator is written in a way that has no meaning."""

    code = "definition"


class ShapeError(TdslError, ValueError):
    """Extents disagree, or cannot be inferred."""

    code = "shape"


class TypeMismatch(TdslError, TypeError):
    """An argument or expression has the wrong type or dtype."""

    code = "type"


class IndexBoundError(TdslError, IndexError, ValueError):
    """An access may be out of bounds of its tensor."""

    code = "bounds"


class ScheduleError(TdslError, ValueError):
    """A directive would change the meaning of the program, or names an unknown func, loop or variable."""

    code = "schedule"


class TargetError(TdslError, RuntimeError):
    """The chosen backend does not support a request, or its tools failed."""

    code = "target"


class RequireError(TdslError, ValueError):
    """A condition stated with `td.require` did not hold while a kernel ran."""

    code = "require"


class Hazard(TdslError, AssertionError):
    """Under `td.emulate` a kernel had a race between threads, or an invalid memory access.

    The cause is a bug of the compiler, or of an instruction that `td.instruction` declares.
    """

    code = "hazard"

    def __init__(self, message: str) -> None:
        TdslError.__init__(
            self,
            message,
            loc=here(),
            label="emulated here",
            hint="no schedule may lead to this: look at what td.instruction says of instructions of your "
            "own, else report the program",
        )


class InternalError(TdslError, AssertionError):
    """A bug of tdsl itself, to be reported; `__cause__` is the original exception."""

    code = "internal"


class UnknownAttribute(TdslError, AttributeError):
    """An object or module of tdsl has no such method or attribute."""

    code = "attribute"


class CacheWarning(UserWarning):
    """The disk cache could not be used; everything still works, more slowly."""


class CompileWarning(UserWarning):
    """A compiler exceeded its time limit; simpler code runs instead."""


class PlanningWarning(UserWarning):
    """A distributed func communicates in so many iterations that planning them takes long."""


def render(error: TdslError) -> str:
    """The text of an error: message and code, source lines with carets, the hint.

    >>> print(render(ShapeError("no extent fits", hint="pass shape=")))
    no extent fits [shape]
      hint: pass shape=
    """
    lines = [f"{error.message} [{' '.join(filter(None, (error.code, error.id)))}]"]
    places = ((error.loc, error.label), *error.related)
    for loc, label in places:
        if loc is not None:
            lines += _excerpt(loc, label)
    if error.hint:
        lines.append(f"  hint: {error.hint}")
    return "\n".join(lines)


def _excerpt(loc: Loc, label: str) -> list[str]:
    source = loc.text()
    heading = f"  at {os.path.basename(loc.file)}:{loc.line}"
    if not source:
        return [f"{heading}  {label}".rstrip()]
    stripped = source.lstrip()
    shift = len(source) - len(stripped)
    # PEP 657 counts bytes of UTF-8, a caret counts characters.
    start = _characters(source, loc.column, shift) - shift
    stop = _characters(source, loc.end_column, len(source)) - shift
    carets = " " * max(start, 0) + "^" * max(stop - max(start, 0), 1)
    gutter = f"{loc.line:>7} | "
    return [heading, gutter + stripped, " " * len(gutter) + f"{carets} {label}".rstrip()]


def _characters(source: str, column: int | None, default: int) -> int:
    return default if column is None else len(source.encode()[:column].decode(errors="ignore"))


def is_one_of(name: object, names: Iterable[str]) -> bool:
    """True if a value that a user passed, of any type, is one of the known names."""
    return isinstance(name, str) and name in names


_MAX_LISTED = 50  # maximal number of names listed after the most similar one


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """A hint with the most similar known name, and a list of the known names.

    >>> did_you_mean("jj", ["i", "j"])
    "did you mean 'j'? There are: i, j"
    """
    import difflib  # imported only when a name is wrong

    all_names = list(names)
    listing = f"There are: {', '.join(all_names)}" if all_names else "there are none"
    similar = difflib.get_close_matches(name, all_names, n=1, cutoff=0.5) if isinstance(name, str) else []
    if not similar:
        return listing
    suggestion = f"did you mean {similar[0]!r}?"
    return suggestion if len(all_names) > _MAX_LISTED else f"{suggestion} {listing}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun in singular or plural.

    >>> counted(1, "update"), counted(2, "update"), counted(2, "entry", "entries")
    ('1 update', '2 updates', '2 entries')
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


Called = TypeVar("Called", bound=Callable[..., Any])


def checked_call(function: Called) -> Called:
    """Decorator: raises TypeMismatch if the function is called with arguments that its signature lacks.

    An exception that only a bug of tdsl can cause becomes an InternalError, and a RecursionError becomes a
    DefinitionError.

    >>> @checked_call
    ... def light(lamp, hours=1): ...
    >>> light("red", hour=2)
    Traceback (most recent call last):
    tdsl.errors.TypeMismatch: light: got an unexpected keyword argument 'hour' [type TD0436]
    ...
      hint: light(lamp, hours=1)
    """

    @functools.wraps(function)
    def checked(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except _BUG_EXCEPTIONS as error:
            if isinstance(error, TdslError):
                raise
            trace = error.__traceback__
            if isinstance(error, TypeError) and trace is not None and trace.tb_next is None:
                raise _wrong_arguments(function, args, named) from None
            replacement = _bug_error(error)
            if replacement is None:
                raise
            raise replacement from error

    return checked  # type: ignore[return-value]  # it has the signature of the function


_BUG_EXCEPTIONS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARIES = (os.path.dirname(os.__file__) + os.sep, os.path.dirname(np.__file__) + os.sep, "<")


def _bug_error(error: Exception) -> TdslError | None:
    """The error to raise for an exception raised in this package; None if code that it calls raised it."""
    frames, trace = list[tuple[FrameType, int]](), error.__traceback__
    while trace is not None:
        frames.insert(0, (trace.tb_frame, trace.tb_lineno))  # the innermost first
        trace = trace.tb_next
    in_package = [frame.f_code.co_filename.startswith(_PACKAGE) for frame, _ in frames]
    position = next(
        n
        for n, (f, _) in enumerate(frames)
        if in_package[n] or not f.f_code.co_filename.startswith(_LIBRARIES)
    )
    raised, line = frames[position]
    if not in_package[position] or position + 1 == len(frames):
        return None
    from_protocol = raised.f_code.co_name.startswith("__") or raised.f_code.co_filename == __file__
    if from_protocol and not in_package[position + 1]:
        return None  # an exception that a protocol of Python expects
    place = f"{raised.f_code.co_filename.removeprefix(_PACKAGE)}:{line}"
    steps = [f.f_locals["step"] for f, _ in frames if f.f_code.co_name == "run_passes"]
    step = f", pass {getattr(steps[0], '__name__', steps[0])}" if steps else ""
    subject, loc, call = "", None, here()
    func = _find_func([x for f, _ in frames for x in f.f_locals.values()])
    if func is not None:
        subject, loc = f" for {func.name!r}", func.definitions[0].loc or func.loc
    label, related = ("defined here", ((call, "in this call"),)) if loc else ("this call", ())
    if isinstance(error, RecursionError):
        return DefinitionError(
            f"loops or expressions{subject} are nested more deeply than the stack of Python allows",
            loc=loc or call,
            label=label,
            related=related,
            hint="sys.setrecursionlimit(10_000) lets it be deeper",
        )
    return InternalError(
        f"a fault of tdsl{subject}: {type(error).__name__} in {place}{step}: {error}",
        loc=loc or call,
        label=label,
        related=related,
        hint="please report it with the program, its schedule and the whole trace; TDSL_DEBUG=verify names a "
        "pass that breaks the loops, TDSL_DUMP=folder keeps the loops after each pass",
    )


def _find_func(values: list[Any]) -> Any:
    """The first func among values of variables, else the output of the first program, else None."""
    for x in values:
        if type(x).__name__ == "FuncDef":
            return x
    for x in values:
        kind = type(x).__name__
        state = getattr(x, "state", None) if kind in ("Schedule", "Variant") else x
        program: Any = x if kind == "Program" else getattr(state, "program", None)
        if type(program).__name__ == "Program":
            return program.func(program.outputs[0])
    return None


def _wrong_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> TypeMismatch:
    name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    signature, problem = inspect.signature(function), ""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        problem = str(error)
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"]
    shown_signature = inspect.Signature(parameters)
    return TypeMismatch(f"{name}: {problem}", loc=here(), label="this call", hint=f"{name}{shown_signature}")


class Suggesting:
    """Base class whose objects raise UnknownAttribute with a hint for an unknown public attribute.

    Public methods raise TypeMismatch if they are called with arguments that their signature lacks.

    >>> class Lamp(Suggesting):
    ...     def light(self): ...
    >>> Lamp().lihgt()
    Traceback (most recent call last):
    tdsl.errors.UnknownAttribute: Lamp has no attribute 'lihgt' [attribute TD0001]
    ...
      hint: did you mean 'light'? There are: light
    """

    __slots__ = ()
    _internal: ClassVar[tuple[str, ...]] = ()  # names that only other parts of tdsl use
    _related_types: ClassVar[
        list[tuple[type, str]]
    ] = []  # classes that have other attributes, with the expression that leads to an object of them

    def __dir__(self) -> list[str]:
        """The attribute names for users."""
        return sorted({*object.__dir__(self)}.difference(type(self)._internal))

    def __init_subclass__(cls) -> None:
        cls._related_types = []
        for name, method in list(vars(cls).items()):
            public = name[0] != "_" or name in ("__init__", "__setitem__")
            if isinstance(method, FunctionType) and public:
                setattr(cls, name, checked_call(method))

    if not TYPE_CHECKING:  # a type checker reports unknown attributes itself

        def __getattr__(self, name: str) -> NoReturn:
            def hint() -> str:
                return self._attribute_hint(name) or _hint_of_name(name, dir(self))

            raise _attribute_error(type(self).__name__, name, hint)

    def _attribute_hint(self, name: str) -> str:
        """The hint for an attribute of an object that can be derived from this object; "" for any other."""
        related = (x for c in type(self).__mro__ for x in getattr(c, "_related_types", ()))
        for other, expression in related:
            # hasattr would say yes for names of `object` and `Suggesting`, too
            is_defined = any(name in vars(c) for c in other.__mro__ if c not in (object, Suggesting))
            if is_defined and name not in getattr(other, "_internal", ()):
                return f"{expression.format(func=self._func_name())}.{name}"
        return ""

    def _func_name(self) -> str:
        """The name of the func to write in the hint."""
        return ""


def module_getattr(
    module: str, names: Iterable[str], lazy_modules: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """A `__getattr__` for a module with the public names `names`; raises UnknownAttribute for other names.

    `lazy_modules` maps attribute names to modules that are imported on first access.
    """

    def find(name: str) -> Any:
        if lazy_modules and name in lazy_modules:
            return import_module(lazy_modules[name])
        raise _attribute_error(module, name, lambda: _hint_of_name(name, names))

    return find


def _attribute_error(owner: str, name: str, hint: Callable[[], str]) -> AttributeError:
    message = f"{owner} has no attribute {name!r}"
    if name.startswith("_"):  # requested by protocols, not by the user
        return AttributeError(message, name=name)
    return UnknownAttribute(message, loc=here(), label="no such attribute", hint=hint)


def _hint_of_name(name: str, names: Iterable[str]) -> str:
    """What another library's name means here; for other names the most similar one, and all of them."""
    from tdsl.core.other_names import OTHER_NAMES  # read only when a name is wrong

    return OTHER_NAMES.get(name) or did_you_mean(name, _public_names(names))


def _public_names(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith("_")]
