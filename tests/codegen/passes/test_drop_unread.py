"""Memory without readers and names without uses."""

from tdsl.codegen.passes.drop_unread import drop_unread
from tests.codegen.passes.written import becomes


def test_a_chain_of_values_that_reaches_nothing_goes():
    becomes(
        drop_unread,
        "out[4], a[4]",
        """
        with alloc(t, 4):
            with alloc(u, 4):
                for x in serial(0, 4):
                    k = a[x]
                    t[x] = k
                    u[x] = t[x] + u[x] * 0
                for y in serial(0, 4):
                    out[y] = a[y]
        """.replace(" + u[x] * 0", ""),
        """
        for y in serial(0, 4):
          out[y] = a[y]
        """,
    )


def test_what_decides_is_read():
    text = """
        with alloc(t, 1):
            t[0] = 2
            k = t[0]
            if a[k] < 3:
                out[0] = 1
        """
    becomes(
        drop_unread,
        "out[4], a[4]",
        text,
        """
        with alloc(t, 1):
          t[0] = 2
          k = t[0]
          if a[k] < 3:
            out[0] = 1
        """,
    )


def test_a_let_used_only_by_an_unused_let_goes():
    becomes(
        drop_unread,
        "out[4]",
        """
        k = out[0] + 1
        m = k * 2
        out[1] = 5
        """,
        """
        out[1] = 5
        """,
    )
