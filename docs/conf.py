"""Sphinx configuration of the documentation: `make docs` builds it to build/docs."""

from __future__ import annotations

import re
from typing import Any

import tdsl
from tdsl.schedule.fluent import Stage

project = "tdsl"
copyright = "the authors of tdsl"  # noqa: A001  # the name that Sphinx reads
release = version = "0.1.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
html_theme = "furo"
html_title = "tdsl"
html_show_copyright = False
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
default_role = "literal"
autodoc_member_order = "alphabetical"
autodoc_typehints = "none"  # signatures are long enough with names and defaults
add_module_names = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
pygments_style = "friendly"
pygments_dark_style = "monokai"


CONTENTS = {
    "Guides": (
        "tutorial", "language", "schedule", "fusion", "tuning", "graph", "gradients", "reductions",
        "rewrites", "gpu", "torch", "jax", "onnx", "export", "distribution", "steps", "planning",
        "looking-inside", "testing", "errors",
    ),
    "Gallery": ("gallery/index",),
    "Reference": ("reference", "error-ids", "environment", "math", "machine", "prices", "glossary"),
    "Measured": ("performance", "chains", "mpi-performance", "benchmarks"),
    "About the code": ("architecture", "regions", "fuzzing", "decisions/index"),
}  # fmt: skip


def _add_contents(app: Any, page: str, source: list[str]) -> None:
    """Give the first page the tables of contents, which are no Markdown that a repository shows."""
    if page in ("decisions/index", "gallery/index"):
        pages = "0*" if page == "decisions/index" else "*"
        source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n\n{pages}\n```\n"
    if page == "index":
        for caption, pages in CONTENTS.items():
            lines = "\n".join(pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```\n"


def _as_rst(lines: list[str]) -> list[str]:
    """The lines of a docstring, which are plain text with `names`, doctests and indented blocks, as RST."""
    result: list[str] = []
    in_doctest = False
    for line in lines:
        in_doctest = line.lstrip().startswith(">>>") or (in_doctest and bool(line.strip()))
        indented = line.startswith("    ") and not in_doctest
        if indented and (not result or not result[-1].strip()):
            result += ["::", ""]
        if in_doctest or indented or (line.startswith(" ") and result and result[-1].startswith(" ")):
            result.append(line)
            continue
        parts = re.split(r"(`[^`]*`)", line)
        result.append("".join(f"`{p}`" if p[:1] == "`" else re.sub(r"([*_|\\])", r"\\\1", p) for p in parts))
    return result


def _process_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = _as_rst(lines)


def _skip_internal(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what only other parts of tdsl use."""
    kinds = [k for k in (*vars(tdsl).values(), Stage) if isinstance(k, type)]
    internal = {n for k in kinds for c in k.__mro__ for n in getattr(c, "_internal", ())}
    return True if name in internal else None


def setup(app: Any) -> None:
    """Connect the handlers above."""
    app.connect("source-read", _add_contents)
    app.connect("autodoc-process-docstring", _process_docstring)
    app.connect("autodoc-skip-member", _skip_internal)
