"""`archive`: a static library, in the format that the linkers of System V and GNU read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_MAGIC = b"!<arch>\n"
_LONGEST_NAME = 15  # bytes of a member's name in its header


def archive(members: Mapping[str, tuple[bytes, Sequence[str]]]) -> bytes:
    """The bytes of a library of object files, each with the symbols that it defines, by file name.

    The first member is the index: the number of symbols, the offset of the member that defines each, and
    their names. Equal members give equal bytes: times, owners and modes are 0.

    >>> library = archive({"a.o": (b"code", ["f"])})
    >>> library[:8], library[68:78]
    (b'!<arch>\\n', b'\\x00\\x00\\x00\\x01\\x00\\x00\\x00Nf\\x00')
    """
    symbols = [(symbol, name) for name, (_, defined) in members.items() for symbol in defined]
    names = b"".join(symbol.encode() + b"\0" for symbol, _ in symbols)
    index_size = 4 + 4 * len(symbols) + len(names)
    offsets: dict[str, int] = {}
    at = len(_MAGIC) + 60 + _even(index_size)
    for name, (data, _) in members.items():
        offsets[name] = at
        at += 60 + _even(len(data))
    numbers = [len(symbols), *(offsets[name] for _, name in symbols)]
    index = b"".join(n.to_bytes(4, "big") for n in numbers) + names
    parts = [_MAGIC, _member("/", index)]
    parts += [_member(f"{name}/", data) for name, (data, _) in members.items()]
    return b"".join(parts)


def _member(name: str, data: bytes) -> bytes:
    assert len(name) <= _LONGEST_NAME + 1, name
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{0:<8}{len(data):<10}`\n".encode()
    return header + data + b"\n" * (len(data) % 2)


def _even(size: int) -> int:
    return size + size % 2
