"""The released training of networks, ported from the released files alone; nothing of ours."""

import torch
from torch.nn import functional


def naive_kappa(z):
    """Extreme eigenvalues of the whole matrix, as released."""
    s = z.T @ z
    values = torch.linalg.eigvalsh(s + 1e-6 * torch.eye(len(s), dtype=s.dtype))
    return values[values > 1e-6].min(), values.max(), s


def naive_steps(frozen, block, head, batches, settings, loss_of):
    """Steps of the released loop: three passes, two regularizers of D x D matrices, SGD.

    ``frozen``, ``block`` and ``head`` follow one another; all are in float64 and training mode.
    """
    for parameter in frozen.parameters():
        parameter.requires_grad = False
    trained = [p for p in block.parameters() if p.requires_grad]
    groups = [{"params": trained}, {"params": head.parameters(), "weight_decay": 2e-5}]
    optimizer = torch.optim.SGD(groups, lr=settings.rate, momentum=0.9, nesterov=True)
    for (x1, y1), (x2, _) in batches:
        x1, x2 = x1.double(), x2.double()
        log_p = functional.log_softmax(head(block(frozen(x1))), -1)
        chosen = -log_p.gather(1, y1[:, None]).squeeze(1)
        loss = (0.9 * chosen - 0.1 * log_p.mean(-1)).mean()
        z1, z2 = block(frozen(x1)), block(frozen(x2))
        total = loss_of(loss, z1, z2, x1.size(-1), settings)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()


def naive_algorithm_1(loss, z1, z2, k, settings):
    _, most, s1 = naive_kappa(z1)
    least, _, s2 = naive_kappa(z2)
    r1 = most**2 / 2 - s1.norm() ** 2 / (2 * k)
    r2 = 1 / (s2.norm() ** 2 / (2 * k) - least**2 / 2)
    return loss + settings.lambda_primary * r1 + settings.lambda_harmful * r2


def naive_r_ill(loss, z1, z2, k, settings):
    least, _, s2 = naive_kappa(z2)
    return settings.lambda_harmful / (s2.norm() ** 2 / (2 * k) - least**2 / 2)


def naive_opt_kappa(loss, z1, z2, k, settings):
    (a, b, _), (c, d, _) = naive_kappa(z1), naive_kappa(z2)
    return loss + (b.log() - a.log()) - (d.log() - c.log())
