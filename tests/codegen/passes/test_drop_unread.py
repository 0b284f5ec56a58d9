"""Memory without readers and names without uses."""

from tdsl.codegen.passes.drop_unread import drop_unread
from tests.codegen.passes.loop_text import assert_becomes


def test_dead_chain_of_stores_is_removed():
    assert_becomes(
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


def test_buffers_read_by_conditions_are_live():
    text = """
        with alloc(t, 1):
            t[0] = 2
            k = t[0]
            if a[k] < 3:
                out[0] = 1
        """
    assert_becomes(
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


def test_let_used_only_by_unused_let_is_removed():
    assert_becomes(
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
