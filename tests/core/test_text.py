"""Parentheses stand only where Python needs them, lines are indented, names are given out once."""

import ast

from hypothesis import example, given
from hypothesis import strategies as st

from tdsl.core.text import ATOM, Names, Piece, Writer, call, infix, number, prefix, ternary

OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "<<", ">>", "&", "|", "^", "and", "or", "<", "=="]


@st.composite
def trees(draw, depth=4):
    """A piece and the same expression with every parenthesis written."""
    kind = draw(st.sampled_from(["leaf", "number", "infix", "infix", "prefix", "ternary", "call"]))
    if depth == 0 or kind == "leaf":
        name = draw(st.sampled_from("abc"))
        return Piece(name), name
    if kind == "number":
        value = draw(st.sampled_from([3, -3, 0.5, -0.5]))
        return number(value), f"({value!r})"
    sub = [draw(trees(depth - 1)) for _ in range(3)]
    (a, full_a), (b, full_b), (c, full_c) = sub
    if kind == "infix":
        op = draw(st.sampled_from(OPERATORS))
        return infix(op, a, b), f"({full_a} {op} {full_b})"
    if kind == "prefix":
        op = draw(st.sampled_from(["-", "~", "not"]))
        return prefix(op, a), f"({op} {full_a})"
    if kind == "ternary":
        return ternary(a, b, c), f"({full_b} if {full_a} else {full_c})"
    return call("f", a, b), f"f({full_a}, {full_b})"


class Chains(ast.NodeTransformer):
    """`(a and b) and c` as Python reads `a and b and c`: one operation of three values."""

    def visit_BoolOp(self, node):
        self.generic_visit(node)
        first = node.values[0]
        if isinstance(first, ast.BoolOp) and type(first.op) is type(node.op):
            node.values[:1] = first.values
        return node


def meaning(text: str) -> str:
    return ast.dump(Chains().visit(ast.parse(text)))


@given(trees())
@example((Piece("a and a and a"), "((a and a) and a)"))
def test_the_text_means_the_tree(tree):
    piece, full = tree
    assert meaning(piece.text) == meaning(full)


@given(trees(depth=2))
def test_no_parenthesis_can_be_left_out(tree):
    piece, full = tree
    right = meaning(full)
    for start, character in enumerate(piece.text):
        if character != "(" or (start and piece.text[start - 1] == "f"):
            continue
        end, level = start, 0
        while True:
            level += {"(": 1, ")": -1}.get(piece.text[end], 0)
            if level == 0:
                break
            end += 1
        shorter = piece.text[:start] + piece.text[start + 1 : end] + piece.text[end + 1 :]
        try:
            same = meaning(shorter) == right
        except SyntaxError:
            same = False
        assert not same, (piece.text, shorter)


def test_pieces_have_the_precedence_of_atoms_by_default():
    assert Piece("x").inside(ATOM) == "x"
    assert infix("+", Piece("x"), Piece("y")).inside(ATOM) == "(x + y)"


def test_a_writer_indents_blocks_and_leaves_empty_lines_empty():
    w = Writer("    ")
    with w.block("if a:"):
        with w.block("if b:"):
            w.line("c")
        w.line()
        w.line("d")
    assert str(w) == "if a:\n    if b:\n        c\n\n    d"


@given(st.lists(st.text(max_size=4), max_size=20))
def test_names_are_identifiers_given_out_once(names):
    generator = Names({"a", "_1"})
    given_out = [generator.fresh(w) for w in names]
    assert len(set(given_out)) == len(given_out)
    assert all(n.isidentifier() and n not in ("a", "_1") for n in given_out)
