"""The paper's mathematics and what goes beyond it: pure functions of tensors."""
