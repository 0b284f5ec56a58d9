"""What the search makes of the chains for GPUs: compiled without one, and the record of all of them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.chains import kernels
from benchmarks.chains.table import CHAINS
from tdsl.target import Target

RECORD = Path(kernels.__file__).parents[1] / "results" / "chains-cuda.json"


def test_a_chain_is_compiled_and_not_run(tmp_path):
    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    record = tmp_path / "record.json"
    words = ["kernels", "--case", "chain-43-R2", "--arch", "sm_80", "--json", str(record)]
    run = CliRunner().invoke(app, words, catch_exceptions=False)
    assert run.exit_code == 0 and "chain-43-R2" in run.stdout
    (result,) = json.loads(record.read_text())["results"]
    rows, terms = 65536, 121
    min_bytes = 4 * (rows * terms + rows)
    assert min_bytes <= result["bytes"] == result["bytes_separate"] <= 1.05 * min_bytes
    assert [k["spills"] + k["stack"] for k in result["kernels"]] == [0]


def test_the_record_has_all_chains_within_the_limits_of_their_gpus():
    results = json.loads(RECORD.read_text())["results"]
    recorded = {(r["chain"], r["arch"]) for r in results}
    assert recorded == {(c.name, arch) for c in CHAINS for arch in kernels.ARCHITECTURES}
    for r in results:
        shared = Target("cuda", arch=r["arch"]).capacity("shared")
        for k in r["kernels"]:
            assert (k["spills"], k["stack"]) == (0, 0), (r["chain"], r["arch"], k)
            assert k["shared"] <= shared and k["threads"] <= 1024 and k["registers"] <= 255
        # what is predicted to be slower than calls apart is not taken
        assert r["predicted"] <= r["predicted_separate"]
