"""The paper's dummy layer: a linear layer whose weight gradient is preconditioned.

Algorithm 1 multiplies the gradient of a regularizer by ``K⁻¹ = (XᵀX)⁻¹``. The pseudo-code in the
paper's appendix applies the inverse on the wrong side: with ``weight = θᵀ`` (out×in) the
preconditioned gradient is ``grad_weight·K⁻¹``, not ``K⁻¹·grad_weight``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from immunis.core.errors import InputError, NumericalError
from immunis.data.checks import check_size, in_dtype


class _Preconditioned(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, ridge: float
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.ridge, ctx.has_bias = ridge, bias is not None
        return nn.functional.linear(inputs, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        grad_inputs = grad @ weight if ctx.needs_input_grad[0] else None
        grad_weight, rows = None, grad.reshape(-1, grad.shape[-1])
        if ctx.needs_input_grad[1]:
            x = inputs.reshape(-1, inputs.shape[-1]).to(torch.float64)
            check_size(x, "inputs of the layer", error=NumericalError)
            gram = x.T @ x
            gram.diagonal().add_(ctx.ridge)
            factor, failed = torch.linalg.cholesky_ex(gram)
            if int(failed):
                raise NumericalError(
                    f"XᵀX + {ctx.ridge:g}·I is singular in this batch of {len(x)} samples and "
                    f"{x.shape[1]} features; raise ridge or the batch size."
                )
            solved = torch.cholesky_solve(x.T @ rows.to(torch.float64), factor).T
            grad_weight = in_dtype(solved, weight.dtype, "the preconditioned gradient")
        return grad_inputs, grad_weight, rows.sum(0) if ctx.has_bias else None, None


class PreconditionedLinear(nn.Linear):
    """``nn.Linear`` whose backward pass right-multiplies ``grad_weight`` by ``(XᵀX + ridge·I)⁻¹``.

    The forward pass, parameters and state-dict keys are those of ``nn.Linear``. Set
    ``preconditioned = False`` for a pass whose gradient must stay plain (the supervised loss).
    The gradient of the bias is never preconditioned. At any scale of the inputs the gradient's
    relative error is about ``ε·κ(XᵀX + ridge·I)``. The paper's released code uses ridge 1 and 1e-7.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        ridge: float = 1e-7,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        if not 0 <= ridge < math.inf:
            raise InputError(f"ridge must be a finite number of at least 0, got {ridge}.")
        self.ridge = ridge
        self.preconditioned = True

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input·weightᵀ + bias``."""
        if not self.preconditioned:
            return super().forward(input)
        return _Preconditioned.apply(input, self.weight, self.bias, self.ridge)
