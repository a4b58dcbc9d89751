"""The paper's experiments, run again: on small stand-ins, and on the real data where it is."""

import copy
import csv
import dataclasses
import gzip
import io
import json
import math
import sys
import types
from collections import Counter

import numpy as np
import pytest
import torch

from immunis import InputError, Record, SettingsError, Task, gram, relative_immunization_ratio
from immunis.attacks.contract import Arena, Data, Samples
from immunis.core.jobs import Job
from immunis.data.sources.house_prices import SHA256, find_or_fetch, released_split
from immunis.data.sources.mnist import mnist_hashes, mnist_images, standardised
from immunis.paper import house_prices, loop, mnist, planned, reproduce
from immunis.paper.attackers import attack, subset
from immunis.paper.digits import Digits, JointRange, read_pairs
from immunis.paper.figures import FIGURES
from immunis.paper.judgement import compare, judge, published, spread
from immunis.paper.measures import Pair
from immunis.paper.methods import ROWS, initial
from immunis.paper.report import write
from immunis.paper.tables import flat_table, mnist_binary_table, tables
from immunis.recipes.estimate import estimate_jobs
from immunis.theory.gram import gram_of

SMALL_HOUSE = house_prices.Settings(seeds=2, epochs=(1, 2), budget=5, curve=5)
SMALL_MNIST = mnist.Settings(pairs=((0, 1), (1, 0)), seeds=2, epochs=1, attack_rows=40, budget=5)


@pytest.fixture(scope="session")
def house_record(house_folder):
    with pytest.warns(UserWarning, match="sha256"):
        return house_prices.reproduce(house_folder, SMALL_HOUSE)


@pytest.fixture(scope="session")
def mnist_record(mnist_folder):
    with pytest.warns(UserWarning, match="not the original MNIST files"):
        return mnist.reproduce(mnist_folder, SMALL_MNIST)


def test_the_published_figures_are_those_of_the_paper():
    one, two = published("house-prices"), published("mnist")
    assert one["methods"] == {
        "r_ill": {"harmful": [90.02, 3.773], "primary": [72.415, 3.545], "rir": [1.244, 0.021]},
        "imma": {"harmful": [7.053, 1.662], "primary": [3.545, 0.880], "rir": [2.001, 0.187]},
        "opt_kappa": {"harmful": [1.518, 0.027], "primary": [0.016, 0.001], "rir": [92.58, 4.492]},
        "algorithm_1": {
            "harmful": [18.92, 2.056],
            "primary": [0.053, 0.002],
            "rir": [356.2, 5.491],
        },
    }
    assert one["epochs"] == {"text": 100, "table": 1000, "released": 10}
    assert two["methods"] == {
        "r_ill": {"harmful": [14.832, 1.039], "primary": [8.654, 0.606], "rir": [1.933, 0.046]},
        "imma": {"harmful": [4.522, 0.139], "primary": [2.774, 0.094], "rir": [1.774, 0.041]},
        "opt_kappa": {"harmful": [3.196, 1.225], "primary": [0.756, 1.171], "rir": [69.73, 54.0]},
        "algorithm_1": {"harmful": [6.345, 0.188], "primary": [0.149, 0.009], "rir": [70.04, 3.28]},
    }
    assert two["successes"] == {"r_ill": 0, "imma": 1, "opt_kappa": 58, "algorithm_1": 90}
    for row in one["methods"].values():  # one pair of tasks: RIR is the ratio, but for averaging
        assert row["harmful"][0] / row["primary"][0] == pytest.approx(row["rir"][0], rel=0.03)
    assert "tab:tabular" in one["table"] and "tab:mnist" in two["table"]
    assert {row.said for row in ROWS.values() if row.said} == set(one["methods"])


PRINTED = {"harmful": [20.0, 1.0], "primary": [0.2, 0.1], "rir": [100.0, 1.0]}


def figures(harmful, primary, rir):
    return {"harmful": harmful, "primary": primary, "rir": rir}


@pytest.mark.parametrize(
    ("released", "honest", "verdict", "says"),
    [
        ((20, 0.2, 100), (24, 0.2, 120), "replicates", "holds under released and honest κ"),
        ((50, 0.2, 250), (20, 10, 2), "replicates only with the released κ", "off: (ii), RIR"),
        ((50, 0.2, 250), (900, 9, 100), "replicates only with the released κ", "off: (i), (ii)"),
        ((900, 9, 100), (20, 0.2, 100), "does not replicate", "(i) 45 times, (ii) 45 times, RIR"),
        ((0.4, 0.2, 2), (20, 0.2, 100), "does not replicate", "holds under honest κ"),
        ((0.4, 0.2, 2), (0.6, 0.2, 3), "does not replicate", "holds under neither κ"),
        ((20, 0.2, math.inf), (20, 0.2, math.nan), "does not replicate", "no finite figure"),
    ],
)
def test_a_verdict_weighs_both_factors_and_names_what_is_off(released, honest, verdict, says):
    found = judge(PRINTED, {"released": figures(*released), "honest": figures(*honest)})
    assert found["verdict"] == verdict
    assert says in found["reason"]


def test_rows_without_a_published_figure_and_runs_that_diverged_are_said():
    assert judge(None, {})["verdict"] == "–"
    assert compare(None, [], 3)["diverged"] == 3
    assert compare(PRINTED, [], 3)["verdict"] == "does not replicate"
    same = {kind: figures(20, 0.2, 100) for kind in ("released", "honest")}
    most, half = compare(PRINTED, [same, same], 3), compare(PRINTED, [same], 2)
    assert most["verdict"] == "replicates" and "1 of 3 runs diverged" in most["reason"]
    assert half["verdict"] == "does not replicate" and "1 of 2 runs diverged" in half["reason"]
    assert math.isnan(spread([2.0])["std"])


def test_one_strange_row_does_not_mislead_the_closed_form_attacker():
    """A value that only one row has: an unpenalised probe is far off there, and best elsewhere."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 8))
    x[:, 7] = 0
    y = x[:, :7] @ rng.normal(size=7)
    x[:500, 7] = 1e-3 * rng.normal(size=500)
    theta = torch.diag(torch.logspace(0, -4, 8, dtype=torch.float64))
    for seed in range(3):
        held = Arena(None, "regression", 1, Data(x[:500], y[:500, None]), None, seed=seed).rows[1]
        train = x[:500].copy()
        train[held[0], 7] = 1e6
        samples = Samples("regression", 1, Data(train, y[:500, None]), Data(x[500:], y[500:, None]))
        found = attack(theta, samples, 5, seed)
        assert found["ridge"]["curve"][-1]["test"] > 0.99, seed


def test_honest_ratios_equal_the_library_s_and_released_ones_move_with_the_scale():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 50, 6)) * np.logspace(0, 2, 6)
    tasks = [Task((part, np.arange(50) % 2), name=n) for part, n in ((x, "p"), (y, "h"))]
    theta = torch.from_numpy(rng.normal(size=(6, 6)))
    pair = Pair.of(*map(gram, tasks))
    found, expected = pair.ratios(theta), relative_immunization_ratio(theta, *tasks)
    assert found["honest"]["rir"] == pytest.approx(expected.value)
    assert found["honest"]["harmful"] == pytest.approx(expected.harmful)
    assert found["released"]["rir"] == pytest.approx(expected.value, rel=1e-6)  # full rank
    flat = x.copy()
    flat[:, 5] = flat[:, 4]  # now one direction is empty
    pair = Pair.of(gram_of(torch.from_numpy(flat)), pair.harmful.gram)
    one, ten = pair.ratios(theta), pair.ratios(10 * theta)
    assert ten["honest"]["primary"] == pytest.approx(one["honest"]["primary"], rel=1e-6)
    assert ten["released"]["primary"] == pytest.approx(100 * one["released"]["primary"], rel=0.05)
    assert pair.primary.spectrum.rank == 5


def test_nothing_is_lost_in_the_joint_range(mnist_folder):
    digits = Digits(*mnist_images(True, mnist_folder), *mnist_images(False, mnist_folder))
    parts = [digits.only(d) for d in (0, 1)]
    grams = tuple(gram_of(torch.from_numpy(standardised(p))) for p in parts)
    joint = JointRange(grams)
    assert 40 < joint.basis.shape[1] < 60
    inside = initial(joint.basis.shape[1], 0)
    null = torch.linalg.svd(joint.basis, full_matrices=True)[0][:, joint.basis.shape[1] :]
    outside = torch.cat([joint.basis, null], 1)  # θ on all pixels, whatever it does elsewhere
    whole = outside @ torch.block_diag(inside, initial(null.shape[1], 1))
    small, large = Pair.of(*joint.moments()).ratios(inside), Pair.of(*grams).ratios(whole)
    assert small["honest"] == pytest.approx(large["honest"], rel=1e-5)
    x = torch.from_numpy(standardised(parts[0]))
    torch.testing.assert_close(joint.coordinates(parts[0]) @ joint.basis.T, x, atol=1e-6, rtol=0)


def test_the_binary_protocol_is_balanced_and_its_samples_are_apart(mnist_folder):
    digits = Digits(*mnist_images(True, mnist_folder), *mnist_images(False, mnist_folder))
    seen = []
    for part in range(3):
        images, labels = digits.against_rest(3, part)
        assert abs(int(labels.sum()) * 2 - len(labels)) <= 9
        seen.append({image.tobytes() for image in images})
    assert not seen[0] & seen[1] | seen[0] & seen[2] | seen[1] & seen[2]
    joint = JointRange((gram_of(torch.eye(784)), gram_of(torch.eye(784))))
    samples = joint.samples(digits.against_rest(3, 2), digits.test_against_rest(3))
    few = subset(samples, 20, seed=0)
    assert np.bincount(few.train.labels).tolist() == [10, 10]


def test_house_prices_has_every_row_column_and_epoch(house_record):
    found = house_record.figures
    cells = {(row["method"], row["epochs"]) for row in found["rows"]}
    assert {m for m, _ in cells} == set(ROWS)
    assert {e for m, e in cells if m == "algorithm_1"} == {1, 2}
    for row in found["rows"]:
        for kind in ("released", "honest"):
            cell = row[kind]["rir"]
            assert len(cell["values"]) == (2 if ROWS[row["method"]].seeded else 1)
        assert set(row["attacks"]) == {"gd_line_search", "ridge"}
        score = row["attacks"]["ridge"]["score"]
        assert score["low"] <= score["median"] <= score["high"] and len(score["values"]) == 2
        assert row["verdict"] and row["reason"]
    assert found["pair"]["ceiling"] > 1
    ours = {row["method"]: row["honest"]["rir"]["mean"] for row in found["rows"]}
    assert max(ours.values()) <= found["pair"]["ceiling"] * (1 + 1e-6)
    assert found["norm_ratio"]["curves"]["identity"]["harmful"][0] == 1
    assert found["path"]["algorithm_1"]["epochs"][-1] == pytest.approx(2)
    assert house_record.data["file"]["as_expected"] is False


@pytest.mark.filterwarnings("ignore:.*not the original MNIST files")
def test_a_dry_run_times_one_run_of_each_kind_and_writes_nothing(mnist_folder, tmp_path, run):
    jobs = planned("mnist", mnist_folder, quick=True, pairs=[(0, 1), (1, 0)])
    counts = Counter(job.kind for job in jobs.values())
    assert counts == {
        "paper": 2, "binary": 2, "paper, closed form": 2, "binary, closed form": 2,
    }  # fmt: skip
    ran = []
    waits = {key: Job(lambda key: ran.append(key), (key,), f"wait: {key}") for key in "xyz"}
    assert set(estimate_jobs(waits, workers=2).parts) == {"wait"}
    assert ran == ["x"]
    refused = run("reproduce", "mnist", "--fetch", "--data", mnist_folder, "--dry-run")
    assert refused.returncode == 2 and "fetch is for house-prices" in refused.stderr
    done = run("reproduce", "mnist", "--quick", "--data", mnist_folder, "--dry-run")
    assert done.stdout.splitlines()[-1].startswith("about "), done.stderr
    assert not list(tmp_path.iterdir())


def test_mnist_has_both_protocols_maps_and_counts(mnist_record):
    protocols = mnist_record.figures["protocols"]
    for name, protocol in protocols.items():
        assert set(protocol["pairs"]) == {"0 1", "1 0"}
        for method, maps in protocol["maps"].items():
            known = [v for line in maps["honest"] for v in line if v is not None]
            assert len(known) == 2, (name, method)
    rows = {row["name"]: row for row in protocols["paper"]["rows"]}
    assert rows["algorithm_1"]["runs"] == 4  # two pairs, two seeds
    assert rows["opt_kappa"]["runs"] == rows["frontier"]["runs"] == 2
    assert "constant" in rows["erase"]["reason"]
    assert rows["algorithm_1"]["successes"]["released"]["pairs"] == 2
    table = rows["algorithm_1_table"]
    assert (table["step"], table["epochs"], table["runs"]) == (0.001, 30, 2)
    assert table["published"] == rows["algorithm_1"]["published"] and table["verdict"] != "–"
    points = mnist_record.figures["path"]["points"]
    assert [point[3] for point in points if point[:2] == [0, 1]] == [1, 3, 5, 10, 20, 30]
    ends = [point[4] for point in points if point[3] == 30]
    assert table["released"]["rir"]["mean"] == pytest.approx(np.mean(ends), rel=1e-4)
    binary = {row["method"]: row for row in protocols["binary"]["rows"]}
    assert not any(row["published"] for row in binary.values())  # the paper has no such table
    assert binary["erase"]["attacks"]["gd_line_search"]["score"]["mean"] < 0.8
    assert protocols["binary"]["identity"]["ridge"]["score"]["mean"] > 0.9


def test_a_method_without_any_theta_has_no_rir(mnist_record):
    record = copy.deepcopy(mnist_record)
    row = next(r for r in record.figures["protocols"]["binary"]["rows"] if r["method"] == "imma")
    for key in ("released", "honest", "successes"):
        del row[key]
    row["attacks"] = {}
    lines = {line[0]: line for line in mnist_binary_table(record).rows}
    assert lines["IMMA"][1:4] == ["0", "–", "–"]
    assert lines["identity"][1:4] == ["2", "1", "1"]


@pytest.mark.parametrize("which", ["house_record", "mnist_record"])
def test_tables_and_figures_come_from_the_record_alone(which, request, tmp_path):
    record = request.getfixturevalue(which)
    record = Record.load(record.save(tmp_path / "read-back.json"))
    paths = {path.name: path for path in write(record, tmp_path / "out")}
    assert set(paths) >= {"record.json", "tables.md", "tables.tex", "figures.csv"}
    for name in FIGURES[record.name]:
        for kind in ("png", "pdf"):
            assert record.digest().encode() in paths[f"{name}.{kind}"].read_bytes()
    markdown = paths["tables.md"].read_text()
    for table in tables(record):
        assert table.title in markdown
        assert all(len(row) == len(table.columns) for row in table.rows)
    latex = paths["tables.tex"].read_text()
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == len(tables(record))
    assert "κ" not in latex.replace("% ", "") or r"$\kappa$" in latex
    flat = list(csv.DictReader(io.StringIO(paths["figures.csv"].read_text())))
    assert len(flat) == len(flat_table(record).rows) > 20
    assert all(math.isfinite(float(row["value"])) for row in flat if row["kappa"] == "published")
    kinds = {"rir", "ceiling", "verdict", "ridge score", "gd_line_search cost ×"}
    assert kinds <= {row["figure"] for row in flat}
    assert all(row["text"] for row in flat if row["figure"] == "verdict")
    assert len(json.dumps(record.to_dict())) < 1_000_000


def counted(monkeypatch, module, stop_after=None):
    """Count the jobs a sweep runs; optionally interrupt it after a few."""
    ran = []

    def watched(self_call):
        def call(*arguments):
            if stop_after is not None and len(ran) >= stop_after:
                raise KeyboardInterrupt
            ran.append(arguments[:2])
            return self_call(*arguments)

        return call

    for name in ("_one", "_table"):
        if (callable(getattr(module, name, None)) and module is mnist) or name == "_one":
            monkeypatch.setattr(module, name, watched(getattr(module, name)))
    return ran


@pytest.mark.filterwarnings("ignore:.*sha256")
def test_an_interrupted_sweep_keeps_what_is_done(house_folder, house_record, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        counted(patch, house_prices, stop_after=4)
        with pytest.raises(KeyboardInterrupt):
            house_prices.reproduce(house_folder, SMALL_HOUSE, folder=tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == 4
    with monkeypatch.context() as patch:
        ran = counted(patch, house_prices)
        shares = []
        record = house_prices.reproduce(
            house_folder,
            SMALL_HOUSE,
            folder=tmp_path,
            progress=lambda _, share: shares.append(share),
        )
    jobs = 2 * (1 + len(ROWS))
    assert len(ran) == jobs - 4
    assert shares == sorted(shares) and shares[-1] == 1
    assert json.dumps(record.to_dict()["figures"]) == json.dumps(house_record.to_dict()["figures"])
    with monkeypatch.context() as patch:
        ran = counted(patch, house_prices)
        more = dataclasses.replace(SMALL_HOUSE, seeds=3)
        house_prices.reproduce(house_folder, more, folder=tmp_path)
    assert len(ran) == 1 + len(ROWS)  # the third seed alone


@pytest.mark.filterwarnings("ignore:.*not the original")
def test_workers_and_seeds_change_nothing_that_was_done(mnist_folder, tmp_path, monkeypatch):
    small = dataclasses.replace(SMALL_MNIST, pairs=((0, 1),), plain_seeds=0, table_seeds=0, seeds=1)
    one = mnist.reproduce(mnist_folder, small, folder=tmp_path)
    ran = counted(monkeypatch, mnist)
    more = mnist.reproduce(
        mnist_folder, dataclasses.replace(small, seeds=2), folder=tmp_path, workers=2
    )
    assert not ran or len(ran) == 1  # in another process, where it is not counted
    first, second = (
        {row["method"]: row for row in r.figures["protocols"]["binary"]["rows"]}
        for r in (one, more)
    )
    assert first == second
    paper = {row["method"]: row for row in more.figures["protocols"]["paper"]["rows"]}
    assert len(paper["algorithm_1"]["released"]["rir"]["values"]) == 2


def test_a_method_that_diverges_is_a_row_not_an_end(house_folder, monkeypatch):
    from immunis.core.errors import NumericalError

    def diverging(setting, seed):
        yield from ((epochs, NumericalError("θ ran away")) for epochs in setting.epochs)

    row = dataclasses.replace(ROWS["imma"], find=diverging)
    monkeypatch.setitem(ROWS, "imma", row)
    for name in list(ROWS):
        if name not in ("imma", "r_ill"):
            monkeypatch.delitem(ROWS, name)
    settings = house_prices.Settings(seeds=1, epochs=(1,), budget=2, curve=2)
    with pytest.warns(UserWarning, match="sha256"):
        record = house_prices.reproduce(house_folder, settings)
    rows = {row["method"]: row for row in record.figures["rows"]}
    assert rows["imma"]["diverged"] == 1 and rows["imma"]["verdict"] == "does not replicate"
    assert "diverged" in tables(record)[0].markdown()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: mnist.Settings(pairs=((3, 3),)), "digits 3 and 3"),
        (lambda: mnist.Settings(pairs=((1, 10),)), "digits 1 and 10"),
        (lambda: mnist.Settings(pairs=()), "need a pair"),
        (lambda: mnist.Settings(seeds=0), "seeds=0"),
        (lambda: mnist.Settings(table_seeds=-1), "table_seeds=-1"),
        (lambda: read_pairs("3-7,37"), "'37' is not a pair"),
        (lambda: read_pairs("3-3"), "digits 3 and 3"),
        (lambda: reproduce("house-prices", pairs=((3, 7),)), "for mnist"),
        (lambda: mnist.Settings(attack_rows=3), "attack_rows=3"),
        (lambda: house_prices.Settings(seeds=0), "seeds=0"),
        (lambda: house_prices.Settings(epochs=(10, 5)), "epochs"),
        (lambda: house_prices.Settings(budget=0), "budget=0"),
        (lambda: reproduce("mnits"), "did you mean 'mnist'"),
    ],
)
def test_impossible_requests_are_refused(call, says):
    with pytest.raises((InputError, SettingsError), match=says):
        call()


def test_a_missing_table_names_the_hash_and_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.delenv("IMMUNIS_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    def offline(**_):
        raise OSError("no network")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", offline)
    with pytest.raises(InputError, match=f"{SHA256}.*OpenML failed too: no network"):
        find_or_fetch(fetch=True)
    for unasked in (lambda: find_or_fetch(), lambda: find_or_fetch(tmp_path / "nowhere", True)):
        with pytest.raises(InputError, match="looked for.*--fetch") as error:
            unasked()
        assert "failed too" not in str(error.value)  # who names a folder gets that folder


def test_the_table_is_fetched_once_and_kept(house_folder, tmp_path, monkeypatch):
    monkeypatch.delenv("IMMUNIS_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    text = (house_folder / "house_prices" / "train.csv").read_text()
    asked = []

    def fetch(data_id, **_):
        asked.append(data_id)
        return types.SimpleNamespace(frame=types.SimpleNamespace(to_csv=lambda **_: text))

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    assert released_split(find_or_fetch(fetch=True)).primary.input_shape == (79,)
    assert released_split(find_or_fetch()).harmful.kind == "regression"
    assert asked == [42165]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "MSZoning"),
        ("Id,MSZoning,LotArea\n1,RL,2\n", "found no SalePrice"),
        ("MSZoning,LotArea,SalePrice\nRL,1,2\nRM,3\n", "line 3 is cut short"),
        ("MSZoning,LotArea,SalePrice\nRL,1,2\nRM,x,3\n", "line 3 has 'x' in column LotArea"),
        ("MSZoning,LotArea,SalePrice\nRL,1,NA\n", "line 2 has 'NA' in column SalePrice"),
        ("MSZoning,LotArea,SalePrice\n", "found no rows"),
        ("MSZoning,LotArea,SalePrice\nRL,1,2\nRM,3,4\n", "1 input columns.*79"),
    ],
)
def test_tables_that_do_not_fit_are_said(tmp_path, text, says):
    (tmp_path / "train.csv").write_text(text)
    with pytest.raises(InputError, match=f"(?s){says}.*{SHA256}"):
        released_split(tmp_path / "train.csv")
    (tmp_path / "train.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a readable CSV"):
        released_split(tmp_path / "train.csv")


def test_mnist_files_that_do_not_fit_name_the_hash(mnist_folder, tmp_path):
    target = tmp_path / "mnist"
    target.mkdir()
    with pytest.raises(InputError, match=r"looked for .*train-images.*sha256 ba891046"):
        mnist.reproduce(tmp_path, SMALL_MNIST)
    for path in (mnist_folder / "mnist").iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    name = target / "t10k-labels-idx1-ubyte.gz"
    whole = name.read_bytes()
    name.write_bytes(whole[:30])
    with pytest.raises(InputError, match=r"t10k-labels.* is damaged.*sha256 ff7bcfd4"):
        mnist.reproduce(tmp_path, SMALL_MNIST)
    name.write_bytes(gzip.compress(gzip.decompress(whole)[:-5]))
    with pytest.raises(InputError, match=r"truncated.*sha256 ff7bcfd4"):
        mnist.reproduce(tmp_path, SMALL_MNIST)


def test_unpacked_mnist_files_are_read_as_well(mnist_folder, tmp_path):
    (tmp_path / "mnist").mkdir()
    for path in (mnist_folder / "mnist").iterdir():
        (tmp_path / "mnist" / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    for packed, unpacked in zip(
        mnist_images(True, mnist_folder), mnist_images(True, tmp_path), strict=True
    ):
        assert np.array_equal(packed, unpacked)
    assert mnist_hashes(mnist_folder) == mnist_hashes(tmp_path)


def test_the_command_writes_everything_and_resumes(run, house_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(house_prices, "quick", lambda: SMALL_HOUSE)
    command = ("reproduce", "house-prices", "--quick", "--seeds", "1", "--data", house_folder)
    done = run(*command, "-o", "out")
    assert done.returncode == 0, done.stderr
    assert "does not replicate" in done.stdout
    out = tmp_path / "out"
    assert done.stdout.splitlines()[-1].startswith("written: out/record.json")
    names = {path.name for path in out.iterdir()}
    assert {"record.json", "tables.md", "tables.tex", "figures.csv", "norm-ratio.pdf"} <= names
    kept = {path: path.stat().st_mtime_ns for path in (out / "runs").iterdir()}
    again = run(*command, "-o", "out", "--json")
    assert json.loads(again.stdout)["figures"]["rows"]
    assert kept == {path: path.stat().st_mtime_ns for path in (out / "runs").iterdir()}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["house-price"], "did you mean 'house-prices'"),
        (["mnist", "--data", "nowhere"], "sha256 ba891046"),
        (["mnist", "--seeds", "0"], "--seeds"),
        (["mnist", "--pairs", "4-4"], "digits 4 and 4"),
        (["house-prices", "--pairs", "3-7"], "for mnist"),
        (["house-prices", "--data", "nowhere"], SHA256),
    ],
)
def test_mistakes_on_the_command_line_leave_nothing_behind(run, tmp_path, arguments, says):
    done = run("reproduce", *arguments)
    assert done.returncode == 2
    assert says in done.stderr.replace("\n", "")
    assert not list(tmp_path.iterdir())


def test_an_interrupted_command_says_how_to_go_on(run, house_folder, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(house_prices, "sweep", interrupted)
    done = run("reproduce", "house-prices", "--data", house_folder)
    assert done.returncode == 130
    assert "goes on from there" in done.stderr
    assert f"immunis reproduce house-prices --data {house_folder}" in done.stderr


def test_on_the_real_table_the_released_loop_gives_what_its_authors_logged(data_folder):
    """Ten epochs: the released repository's log of such a run has factors near these."""
    tasks = released_split(data_folder / "house_prices" / "train.csv")
    (x_p, y_p), (x_h, _) = tasks.primary.train.tensors(), tasks.harmful.train.tensors()
    pair = Pair.of(gram(tasks.primary), gram(tasks.harmful))
    assert pair.primary.released == pytest.approx(1.76e9, rel=0.02)
    found = dict(loop.run(initial(79, 0), (x_p, y_p), x_h, loop.Settings(), (10, 100)))
    ten, hundred = (pair.ratios(found[epochs])["released"] for epochs in (10, 100))
    assert 0.1 < ten["primary"] < 0.5 and 0.1 < ten["harmful"] < 0.6 and 1 < ten["rir"] < 4
    assert 50 < hundred["rir"] < 250


def test_jobs_can_be_sent_to_other_processes(mnist_folder):
    import pickle

    digits = Digits(*mnist_images(True, mnist_folder), *mnist_images(False, mnist_folder))
    jobs = dict(mnist._jobs(digits, SMALL_MNIST, {}))
    assert len(jobs) == 2 * (1 + 2) + 2 * (1 + 1) + 2 * (1 + 1)
    job = next(iter(jobs.values()))
    assert isinstance(pickle.loads(pickle.dumps(job)), Job)
    assert sys.getsizeof(pickle.dumps(job)) < 30e6
