"""Products of matrices are torch's, whichever library computes them."""

import pytest
import torch

from mjfleet.rl.device import cpu_products
from mjfleet.rl.device.cpu_products import linear


@pytest.mark.parametrize("by_onednn", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_views_are_those_of_exact_numbers(
    by_onednn: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_onednn and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch is without oneDNN")
    monkeypatch.setattr(cpu_products, "is_onednn_faster", lambda: by_onednn)
    torch.manual_seed(1)
    rows, weight, bias = (torch.randn(*size, dtype=dtype) for size in ((50, 24), (7, 24), (7,)))
    gradient = torch.randn(50, 7, dtype=dtype)
    products = (
        (rows, weight, bias),
        (gradient, weight.t(), None),
        (gradient.t(), rows.t(), None),
        (rows.t(), gradient.t(), None),
        (rows[:0], weight, bias),
    )
    for left, right, added in products:
        exact = left.double() @ right.double().t() + (0.0 if added is None else added.double())
        found = linear(left, right, added)
        assert (found.shape, found.dtype) == (exact.shape, dtype)
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("cpu", "capability", "expected"),
    [
        ("AMD EPYC 9R14", "AVX512", True),
        ("AMD EPYC 7B13", "AVX2", False),
        ("Intel(R) Xeon(R) Platinum 8481C", "AVX512", False),
    ],
)
def test_mkl_multiplies_except_where_it_leaves_half_of_the_cpu_unused(
    cpu: str, capability: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_products, "cpu_name", lambda: cpu)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert cpu_products.is_onednn_faster.__wrapped__() == expected
