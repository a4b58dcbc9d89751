import pytest
import torch
from torch import nn

from immunis import (
    InputError,
    RankWarning,
    SettingsError,
    Task,
    gram,
    measure,
    norm_ratio_curve,
    relative_immunization_ratio,
)
from immunis.report.format import number
from immunis.report.ratios import measured_words
from immunis.theory.gram import gram_of
from immunis.theory.measure import degenerate_columns

F = torch.float64


def test_measure_reports_spectra_ceiling_and_rho(pair):
    m = measure(*pair)
    assert (m.primary.rank, m.harmful.dimension, m.free_directions) == (5, 5, 0)
    assert m.ceiling == m.shared_ceiling == m.floored_ceiling > 1
    assert "no free directions" in measured_words(m.record)
    assert 0 < m.rho < 1
    figures = m.record.figures
    assert figures["primary"]["condition_number"] == m.primary.condition_number
    assert m.record.data["primary"]["train"].endswith("-60")
    with_model = measure(*pair, model=nn.Linear(5, 5))
    assert with_model.primary.condition_number != m.primary.condition_number


def test_measure_names_the_columns_that_lower_the_rank(pair):
    x, y = pair[0].train.tensors()
    x = torch.cat([x, x[:, 2:3], 0 * x[:, :1], torch.ones_like(x[:, :1])], 1)
    task = Task((x, y), name="odd")
    says = r"odd: rank 6 of 8: 1 zero.*\(6\); 1 constant.*\(7\); 1 duplicate.*\(5\)"
    with pytest.warns(RankWarning, match=says):
        m = measure(task, Task((torch.randn(60, 8, dtype=F), y), name="ok"))
    assert m.free_directions == 2
    assert m.ceiling == float("inf")
    assert m.floored_ceiling == pytest.approx(1e3 * m.shared_ceiling)
    assert measured_words(m.record).count(number(m.floored_ceiling)) == 1
    assert m.ridge_ceiling < float("inf")


def test_a_large_common_mean_makes_no_columns_constant_or_equal():
    x = torch.randn(200, 4, dtype=F) + 1e7
    assert not any(degenerate_columns(gram_of(x)).values())
    x[:, 1] = x[:, 0]
    x[:, 2] = 3.3
    assert degenerate_columns(gram_of(x)) == {"zero": [], "constant": [2], "duplicate": [1]}


def test_measure_of_constant_labels_has_no_rho(pair):
    task = Task((torch.randn(20, 5), torch.zeros(20, dtype=torch.long)), name="constant")
    assert measure(pair[0], task).rho is None


def test_measure_refuses_unlike_tasks(pair):
    with pytest.raises(InputError, match="one extractor must read both"):
        measure(pair[0], Task((torch.randn(20, 4), torch.arange(20) % 2), name="narrow"))
    with pytest.raises(InputError, match="wrap data as Task"):
        measure(torch.randn(5, 5), pair[1])
    for bad in (torch.eye(7), nn.Linear(4, 4)):
        with pytest.raises(InputError, match="extractor reads"):
            measure(*pair, model=bad)
        with pytest.raises(InputError, match="extractor reads"):
            relative_immunization_ratio(bad, *pair)
    with pytest.raises(SettingsError, match="steps=-1"):
        norm_ratio_curve(gram(pair[0]), -1)


class Reads(nn.Module):
    """A network of token ids; ``form`` makes its features of the embedded tokens."""

    def __init__(self, form):
        super().__init__()
        self.embed, self.form = nn.Embedding(50, 6), form

    def forward(self, inputs):
        return self.form(self.embed(inputs))


def test_token_ids_are_measured_through_a_network_that_reads_them():
    ids, labels = torch.randint(0, 50, (80, 7)), torch.arange(80) % 2
    pair = Task((ids, labels), name="ids"), Task((ids.flip(0), labels), name="others")
    model = Reads(lambda z: z.mean(1)).eval()
    found = measure(*pair, model)
    expected = gram_of(model(ids).detach())
    assert found.primary.dimension == 6
    torch.testing.assert_close(gram(pair[0], model).matrix(), expected.matrix())
    with pytest.raises(InputError, match=r"the model cannot read inputs of shape \(80, 7\)"):
        measure(*pair, nn.Sequential(nn.Linear(5, 5)).eval())
    with pytest.raises(InputError, match="returns dict; expected a tensor of features"):
        measure(*pair, Reads(lambda z: {"z": z}).eval())


def test_a_numpy_theta_is_one_like_any_other(pair):
    theta = torch.randn(5, 5, dtype=F)
    found = measure(*pair, theta.numpy())
    assert found.ceiling == measure(*pair, theta).ceiling
    with pytest.raises(InputError, match="expected a matrix"):
        measure(*pair, theta.numpy()[0])
