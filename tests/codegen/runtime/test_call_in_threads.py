"""Calling a compiled program from several threads at a time, and from a process that is forked meanwhile."""

import os
import signal
import threading

import numpy as np
import pytest

from tdsl.codegen.runtime.call import Entry
from tests.codegen.runtime.test_call import SCALED, TWO, Fake, f


def test_threads_build_each_variant_once_and_get_separate_results():
    def build(specialisation):
        np.sort(rng.random(300_000))  # long enough, without Python's lock, for the others to ask
        builds.append(specialisation.sizes)
        return Fake(SCALED, lambda x, w, s: [x * w + s], specialisation, True)

    def work(seed):
        started.wait()
        for n in range(30):
            x = np.full((1 + n % 3, seed + 1), seed, np.float32)
            if not (call(x, np.ones(seed + 1, np.float32), float(n)) == seed + n).all():
                wrong.append((seed, n))

    rng, builds, wrong, started = np.random.default_rng(0), [], [], threading.Barrier(8)
    call = Entry(SCALED, frozenset({"C"}), build)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert sorted(builds) == [(("R", 1),), (("R", 2),), (("R", 3),)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_process_can_build_while_its_parent_is_building():
    building, go_on = threading.Event(), threading.Event()

    def build(specialisation):
        if threading.current_thread() is not threading.main_thread():
            building.set()
            go_on.wait(10)
        return Fake(TWO, lambda x: [x + 1, x.sum()], specialisation, False)

    call = Entry(TWO, frozenset(), build)
    other = threading.Thread(target=call, args=(f(3),))
    other.start()
    assert building.wait(10)
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        os._exit(0 if call(f(4))[1] == 6 else 1)
    go_on.set()
    other.join()
    assert os.waitpid(child, 0)[1] == 0
