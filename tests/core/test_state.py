"""Eight threads at once: what a process has only one of is as it was, and results are the same."""

import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from immunis import RankWarning, Spectrum
from immunis.core.state import one_thread, quiet, threads_for, variables
from immunis.data.sources import digit_parity
from immunis.models.zoo import pretrained_mlp, weights_only
from immunis.theory.gram import gram_of
from immunis.theory.spectrum import quiet_spectrum

THREADS = 8


@pytest.fixture(autouse=True)
def _switch_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(call, times=THREADS):
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(lambda _: call(), range(times)))


def test_warnings_are_as_they_were_after_eight_threads():
    few, before = gram_of(torch.randn(5, 8)), list(warnings.filters)
    together(lambda: quiet_spectrum(few), 400)

    def silently():
        with quiet(RankWarning):
            Spectrum.of(few)

    together(silently, 400)
    assert warnings.filters == before
    with pytest.warns(RankWarning):
        Spectrum.of(few)


def test_eight_threads_train_the_same_network():
    task, state = digit_parity(shots=20).primary, torch.get_rng_state()
    found = together(lambda: pretrained_mlp(task, (8, 4), epochs=2, seed=0))
    for network in found[1:]:
        for one, other in zip(found[0].parameters(), network.parameters(), strict=True):
            assert torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_variables_hold_in_every_thread_and_are_restored():
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"

    def looked():
        with weights_only(), variables(IMMUNIS_ABSENT=None):
            return os.environ.get(name)

    assert name not in os.environ
    assert together(looked, 400) == ["1"] * 400
    assert name not in os.environ


def test_the_last_thread_restores_the_number_of_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)

    def asked():
        with one_thread():
            return torch.get_num_threads()

    try:
        together(asked, 400)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("work", "expected"), [(1e6, 1), (1e12, 3)])
def test_small_work_has_one_thread(work, expected):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with threads_for(work):
            assert torch.get_num_threads() == expected
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("given", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_waiting_threads_do_not_spin_unless_the_user_says_so(given, expected):
    code = "import immunis, os; print(os.environ['OMP_WAIT_POLICY'])"
    kept = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    asked = kept if given is None else kept | {"OMP_WAIT_POLICY": given}
    done = subprocess.run([sys.executable, "-c", code], env=asked, capture_output=True, text=True)
    assert done.stdout.split() == [expected]
