"""Names of variables in CUDA text: those of the program, unique in each scope.

TVM numbers names that occur twice in a kernel, wherever they are. So TIR gets a different placeholder for
each variable, and the text gets the name that is free in the scopes that enclose its declaration.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field

PLACEHOLDER = re.compile(r"\bid(\d+)(?:_ptr)?\b")
_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t class compl
    const constexpr const_cast continue decltype default delete do double dynamic_cast else enum explicit
    export extern false float for friend goto half if inline int long mutable namespace new noexcept not
    not_eq nullptr operator or or_eq private protected public register reinterpret_cast return short signed
    sizeof static static_assert static_cast struct switch template this thread_local throw true try typedef
    typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq
    uint uchar ushort nv_bfloat16 threadIdx blockIdx blockDim gridDim warpSize printf memcpy memset assert
    abs acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf exp exp2 expm1 fabs floor fma fmax
    fmin hypot isfinite isinf isnan log log10 log1p log2 max min pow rint round rsqrt sin sinh sqrt tan tanh
    trunc NULL INFINITY NAN EOF signbit std linux unix
"""
_VECTOR = re.compile(
    r"(?:u?char|u?short|u?int|u?long|u?longlong|float|double|half|nv_bfloat16)\d|id\d+(?:_ptr)?"
)


def is_reserved(name: str) -> bool:
    """True if CUDA C++ gives a name a meaning that a variable must not hide."""
    internal = name.startswith(
        ("__", "tdsl_", "CUDA", "wgmma_", "mma_", "ldmatrix_", "stmatrix_", "bulk_store_")
    )
    internal = internal or name.startswith("condval")  # TVM's variables of conditional values
    return name in _RESERVED or internal or _VECTOR.fullmatch(name) is not None


_RESERVED = frozenset(_KEYWORDS.split())


def identifier(name: str) -> str:
    """A valid identifier of C++ for a name.

    >>> identifier("x.1"), identifier("1st"), identifier("exp")
    ('x_1', '_1st', 'exp_')
    """
    text = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    if not text or text[0].isdigit():
        text = f"_{text}"
    return f"{text}_" if is_reserved(text) else text


def without_number(name: str) -> str:
    """A name without the number that makes it unique in the loop IR.

    >>> without_number("c_i_12"), without_number("c")
    ('c_i', 'c')
    """
    return re.sub(r"(?<=.)_\d+$", "", name)


@dataclass(slots=True)
class Identifiers:
    """The variables of a kernel: the candidates for the name of each placeholder, best first."""

    candidates: list[tuple[str, ...]] = field(default_factory=list)

    def declare(self, *candidates: str) -> str:
        """A placeholder for a new variable."""
        self.candidates.append(tuple(dict.fromkeys(map(identifier, candidates))))
        return f"id{len(self.candidates) - 1}"


@dataclass(slots=True)
class Scopes:
    """The names of the variables that the text declared so far, and those of each open scope."""

    identifiers: Identifiers
    names: dict[int, str] = field(default_factory=dict)
    open: list[set[str]] = field(default_factory=lambda: [set()])

    def declare(self, placeholder: str) -> None:
        """Name a variable of the innermost scope by the first candidate that no open scope has."""
        number = int(placeholder.removeprefix("id").removesuffix("_ptr"))
        candidates = self.identifiers.candidates[number]
        numbered = (f"{candidates[-1]}_{n}" for n in itertools.count(1))
        name = next(x for x in itertools.chain(candidates, numbered) if not self.is_taken(x))
        self.open[-1].add(name)
        self.names[number] = name

    def is_taken(self, name: str) -> bool:
        """True if an open scope declares a variable of this name."""
        return any(name in scope for scope in self.open)

    def named(self, text: str) -> str:
        """`text` with names in place of the placeholders.

        >>> x = Identifiers()
        >>> first, second = x.declare("i"), x.declare("i", "f_i")
        >>> scopes = Scopes(x)
        >>> scopes.declare(first), scopes.declare(second)
        (None, None)
        >>> scopes.named(f"{first} + {second} + {second}_ptr[0]")
        'i + f_i + f_i[0]'
        """
        return PLACEHOLDER.sub(lambda m: self.names[int(m[1])], text)
