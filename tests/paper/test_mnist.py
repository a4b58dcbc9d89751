"""Table 2 again, on stand-ins for MNIST's digits."""

import dataclasses
import pickle
from collections import Counter

import numpy as np
import pytest
import torch

from immunis import InputError, SettingsError
from immunis.core.jobs import Job, Run
from immunis.data.sources.digit_images import mnist_images, standardised
from immunis.paper import mnist, planned, reproduce
from immunis.paper.digits import paired_rows
from immunis.paper.measures import Pair, ratios
from immunis.paper.released_loop import Side
from immunis.paper.rows import ROWS, trained


def test_both_protocols_have_rows_maps_and_counts(mnist_record):
    protocols = mnist_record.figures["protocols"]
    for name, protocol in protocols.items():
        assert set(protocol["pairs"]) == {"0 1", "1 0"}
        for method, maps in protocol["maps"].items():
            known = [v for line in maps["honest"] for v in line if v is not None]
            assert len(known) == 2, (name, method)
    rows = {row["method"]: row for row in protocols["paper"]["rows"]}
    assert rows["algorithm_1"]["runs"] == 4  # two pairs, two seeds
    assert "constant" in rows["erase"]["reason"]
    assert rows["algorithm_1"]["successes"]["released"]["pairs"] == 2
    assert (rows["algorithm_1"]["step"], rows["text_step"]["step"]) == (0.001, 0.005)
    for name in ("algorithm_1", "text_step"):
        assert (
            rows[name]["replicates"] == rows[name]["holds"] == "not tested at the paper's setting"
        )
        rir = rows[name]["released"]["rir"]
        assert rir["low"] <= rir["mean"] <= rir["high"]
    points = mnist_record.figures["path"]["points"]
    assert [point[3] for point in points if point[:2] == [0, 1]] == [1, 2]
    ends = [point[4] for point in points if point[3] == 2]
    assert rows["algorithm_1"]["released"]["rir"]["values"][0] == pytest.approx(
        np.mean(ends), rel=1e-4
    )
    binary = {row["method"]: row for row in protocols["binary"]["rows"]}
    assert not any(row["published"] for row in binary.values())  # the paper has no such table
    assert binary["erase"]["attacks"]["gd_line_search"]["score"]["mean"] < 0.8
    assert protocols["binary"]["identity"]["ridge"]["score"]["mean"] > 0.9


@pytest.mark.filterwarnings("ignore:.*not the original")
def test_jobs_can_be_sent_to_other_processes(mnist_folder, small_mnist):
    jobs, _, _ = planned("mnist", mnist_folder, small_mnist)
    assert Counter(job.kind for job in jobs.values()) == {
        "paper, closed form": 4,
        "binary, closed form": 2,
        **{f"paper, {ROWS[name].label}": 4 for name in mnist.TRAINED},
        "binary, Alg. 1, released": 2,
    }
    stacked, _, _ = planned("mnist", mnist_folder, small_mnist, device="cuda")
    assert Counter(job.kind for job in stacked.values())["paper, IMMA"] == 2  # both pairs at once
    packed = pickle.dumps(next(iter(jobs.values())))
    assert isinstance(pickle.loads(packed), Job) and len(packed) < 30e6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*not the original")
def test_workers_and_seeds_change_nothing_that_was_done(mnist_folder, small_mnist, tmp_path):
    small = dataclasses.replace(small_mnist, pairs=((0, 1),), seeds=1)
    one = reproduce("mnist", mnist_folder, small, run=Run(folder=tmp_path))
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    more = dataclasses.replace(small, seeds=2)
    two = reproduce("mnist", mnist_folder, more, run=Run(2, folder=tmp_path))
    alone = reproduce("mnist", mnist_folder, more)
    assert kept.items() <= {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}.items()
    binary = [record.figures["protocols"]["binary"]["rows"] for record in (one, two, alone)]
    assert binary[0] == binary[1] == binary[2]
    paper = [record.figures["protocols"]["paper"] for record in (two, alone)]
    assert paper[0] == paper[1]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"pairs": ((3, 3),)}, r"\[3\] are in both"),
        ({"pairs": ((1, 10),)}, "digits from 0 to 9"),
        ({"pairs": ()}, "at least one pair"),
        ({"seeds": 0}, "seeds=0"),
        ({"epochs": 0}, "epochs=0"),
        ({"attack_rows": 3}, "attack_rows=3"),
    ],
)
def test_impossible_settings_are_refused(bad, says):
    with pytest.raises((InputError, SettingsError), match=says):
        mnist.Settings(**bad)


def test_the_loop_has_the_settings_of_table_4_and_the_released_k():
    """Table 4 (λ, step) and ``X1.size(-1)`` of a batch of images, 28."""
    loop = mnist.LOOP
    assert (loop.step, loop.lambda_primary, loop.lambda_harmful) == (1e-3, 1.0, 5e7)
    assert loop.width == torch.zeros(64, 1, 28, 28).size(-1) and loop.bias and loop.batch == 64
    assert mnist.Settings().epochs == 30


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_one_epoch_is_what_the_authors_log_has():
    """``wandb/run-20250608_032358-ikncuytd`` of the released repository: digits 0 and 1."""
    try:
        images = mnist_images()
    except InputError as error:
        pytest.skip(str(error))
    drawn = paired_rows(images[1], "paper", (0, 1), 0)
    inputs = [torch.from_numpy(standardised(images[0][rows])).float() for rows, _ in drawn]
    before = Pair(*inputs).kappas()
    assert before["released"][0] == pytest.approx(3108297500759.5996, rel=1e-5)
    assert before["released"][1] == pytest.approx(1727520316176.9072, rel=2e-3)  # other ones drawn
    labels = [torch.from_numpy(each) for _, each in drawn]
    rows = torch.arange(len(inputs[0]))
    sides = [Side(x, [rows], [y]) for x, y in zip(inputs, labels, strict=True)]
    ((_, _, layer),) = trained(ROWS["algorithm_1"], *sides, mnist.LOOP, (1,), 0)
    found = ratios(before, Pair(*inputs).kappas(layer, 3))["released"]
    assert found["harmful"] == pytest.approx(7.303, rel=0.1)
    assert found["primary"] == pytest.approx(0.0692, rel=0.1)
    assert found["rir"] == pytest.approx(105.5, rel=0.1)
