import pytest
import torch
from torch.nn import functional as F

from steelyard.nn.attention import attend_tail


def attended(attend, parts, upstream):
    leaf = parts.clone().requires_grad_()
    result = attend(*(part.transpose(1, 2) for part in leaf.split(2, dim=2)))
    result.backward(upstream)
    assert leaf.grad is not None
    return result.detach(), leaf.grad


@pytest.mark.parametrize("length", [40, 300])
def test_gradients_of_short_contexts_in_bfloat16_are_no_worse_than_the_kernels(length):
    def kernel(queries, keys, values):
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)

    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(30, length, 6, 16, generator=generator).bfloat16()
    upstream = torch.randn(30, 2, length, 16, generator=generator).bfloat16()
    _, wanted = attended(kernel, parts.float(), upstream.float())
    theirs, their_gradient = attended(kernel, parts, upstream)
    ours, our_gradient = attended(attend_tail, parts, upstream)
    assert torch.equal(ours, theirs) and our_gradient.dtype == torch.bfloat16
    errors = [(found.float() - wanted).norm() for found in (our_gradient, their_gradient)]
    assert errors[0] <= errors[1] < 0.01 * wanted.norm()
    assert torch.equal(our_gradient, their_gradient) == (length > 256)
