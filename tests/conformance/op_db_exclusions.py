"""What the test over PyTorch's operator database leaves out, each by name and with a sentence."""

from __future__ import annotations

_RANDOM = "random: PyTorch draws other numbers than it would the next time"
_SHAPES = "the shape of its result, or the way it goes, depends on the values of tensors"
_IN_PLACE = "changes an argument in place, which a graph refuses"
_SPECIAL = "a special function that no backend has; falls back"
_LINEAR = "a factorization or solver that no backend has; falls back"
_UNSPECIFIED = "what it returns is unspecified"
_RARE = "no backend has it; falls back"
_SPARSE = "takes or gives sparse tensors"
_NO_TENSOR = "gives no tensor"
_GPU = "compiled for GPUs at run time; PyTorch has no implementation on the CPU"


def _all(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


# Entries that are left out in every dtype.
EXCLUDED: dict[str, str] = {
    **_all(_NO_TENSOR, "item allclose broadcast_shapes equal"),
    **_all(
        _RANDOM,
        "nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d rand_like "
        "nn.functional.rrelu svd_lowrank pca_lowrank bernoulli multinomial normal "
        "normal.number_mean randint randint_like randn randn_like nn.functional.dropout "
        "nn.functional.dropout2d nn.functional.dropout3d nn.functional.alpha_dropout "
        "nn.functional.feature_alpha_dropout.with_train",
    ),
    **_all(
        _IN_PLACE,
        "cauchy exponential geometric log_normal normal.in_place uniform native_batch_norm "
        "_native_batch_norm_legit _batch_norm_with_update nn.functional.batch_norm "
        "nn.functional.instance_norm resize_ resize_as_ zero_",
    ),
    **_all(
        _SHAPES,
        "combinations masked_select corrcoef cov unique unique_consecutive nonzero argwhere "
        "tensor_split nn.functional.ctc_loss nn.functional.gaussian_nll_loss",
    ),
    **_all(
        _SPECIAL,
        "igamma igammac polygamma.polygamma_n_1 polygamma.polygamma_n_2 "
        "polygamma.polygamma_n_3 polygamma.polygamma_n_4 nextafter frexp "
        "special.zeta special.ndtri special.airy_ai "
        "special.bessel_j0 special.bessel_j1 special.bessel_y0 special.bessel_y1 "
        "special.chebyshev_polynomial_t special.chebyshev_polynomial_u "
        "special.chebyshev_polynomial_v special.chebyshev_polynomial_w "
        "special.hermite_polynomial_h special.hermite_polynomial_he "
        "special.laguerre_polynomial_l special.legendre_polynomial_p "
        "special.modified_bessel_i0 special.modified_bessel_i1 special.modified_bessel_k0 "
        "special.modified_bessel_k1 special.scaled_modified_bessel_k0 "
        "special.scaled_modified_bessel_k1 special.shifted_chebyshev_polynomial_t "
        "special.shifted_chebyshev_polynomial_u special.shifted_chebyshev_polynomial_v "
        "special.shifted_chebyshev_polynomial_w special.spherical_bessel_j0",
    ),
    **_all(
        _LINEAR,
        "cholesky cholesky_inverse cholesky_solve geqrf lu lu_solve lu_unpack matrix_exp ormqr "
        "pinverse qr svd triangular_solve logdet norm.nuc linalg.det linalg.cholesky "
        "linalg.cholesky_ex linalg.cond linalg.eig linalg.eigvals linalg.eigh linalg.eigvalsh "
        "linalg.householder_product linalg.ldl_factor linalg.ldl_factor_ex linalg.ldl_solve "
        "linalg.lstsq linalg.lstsq.grad_oriented linalg.qr linalg.slogdet linalg.lu_factor "
        "linalg.lu_factor_ex linalg.lu linalg.lu_solve linalg.inv linalg.inv_ex linalg.solve "
        "linalg.solve_ex linalg.solve_triangular linalg.matrix_rank linalg.pinv "
        "linalg.matrix_rank.hermitian linalg.pinv.singular linalg.pinv.hermitian linalg.svd "
        "linalg.svdvals linalg.tensorinv linalg.tensorsolve",
    ),
    **_all(
        _UNSPECIFIED, "empty empty_like empty_permuted empty_strided new_empty new_empty_strided"
    ),
    **_all(
        _RARE,
        "histogram histogramdd "
        "nonzero_static grid_sampler_3d hash_tensor _segment_reduce.lengths "
        "_segment_reduce.offsets",
    ),
    **_all(
        _GPU,
        "jiterator_unary jiterator_binary jiterator_4inputs_with_extra_args "
        "jiterator_binary_return_by_ref jiterator_2inputs_2outputs bmm.triton_optimized",
    ),
    **_all(_SPARSE, "sparse.sampled_addmm sparse.mm.reduce to_sparse"),
    "nn.functional.linear_cross_entropy.chunked": "an operator outside ATen without a kernel",
    "nn.functional.linear_cross_entropy.chunked_none": "an operator outside ATen without a kernel",
}

# Refusals of single samples: what the message has to contain.
REFUSED: dict[str, tuple[str, ...]] = {
    "nn.functional.embedding": ("changed in place",),  # max_norm rescales the table
    "nn.functional.embedding_bag": ("changed in place",),
    "__getitem__": ("depends on the values",),  # masks as indices
    "nn.functional.grid_sample": ("grid_sampler_3d",),
    "repeat_interleave": ("depends on the values",),
    "linalg.norm.subgradients_at_zero": ("_linalg_svd",),
    "narrow": ("does not say which shapes",),  # starts where a tensor says
    "linalg.matrix_power": ("linalg_inv_ex",),  # negative powers
    "index_put": ("boolean mask as index",),  # a value for each place that the mask chooses
}

# Entries of which only the first result is compared: which of equal elements comes first is
# unspecified, and so are the places that the second tells.
FIRST_ONLY = ("sort", "topk", "kthvalue", "median", "nanmedian", "mode")

# Refusals that say that a dtype is not claimed: any but float32 may have them.
DTYPE_REFUSAL = r"dtype|convolution in|float32"

# Factors on the tolerance, where PyTorch's own result is that inaccurate.
TOLERANCE: dict[str, float] = {}

# Core ATen operators that have no entry of their own name: the entries that lead to them.
SAMPLED_BY: dict[str, tuple[str, ...]] = {
    "_adaptive_avg_pool2d": ("nn.functional.adaptive_avg_pool2d",),
    "_adaptive_avg_pool3d": ("nn.functional.adaptive_avg_pool3d",),
    "_cdist_forward": ("cdist",),
    "_embedding_bag": ("nn.functional.embedding_bag",),
    "_log_softmax": ("log_softmax", "log_softmax.with_dtype"),
    "_pdist_forward": ("nn.functional.pdist",),
    "_softmax": ("softmax", "softmax.with_dtype"),
    "_to_copy": ("to", "half", "bfloat16", "float", "double", "int", "long", "bool"),
    "adaptive_avg_pool1d": ("nn.functional.adaptive_avg_pool1d",),
    "alias": ("alias_copy",),
    "convolution": ("nn.functional.conv1d", "nn.functional.conv2d", "nn.functional.conv3d",
                    "nn.functional.conv_transpose2d"),
    "copy": ("to",),
    "elu": ("nn.functional.elu", "nn.functional.selu", "nn.functional.celu"),
    "embedding": ("nn.functional.embedding",),
    "index": ("__getitem__",),
    "max_pool2d_with_indices": ("nn.functional.max_pool2d",),
    "max_pool3d_with_indices": ("nn.functional.max_pool3d",),
    "native_dropout": ("nn.functional.feature_alpha_dropout.without_train",),
    "reflection_pad1d": ("nn.functional.pad.reflect",),
    "reflection_pad2d": ("nn.functional.pad.reflect",),
    "reflection_pad3d": ("nn.functional.pad.reflect",),
    "replication_pad2d": ("nn.functional.pad.replicate",),
    "replication_pad3d": ("nn.functional.pad.replicate",),
    "upsample_bilinear2d": ("nn.functional.interpolate.bilinear",),
    "upsample_nearest2d": ("nn.functional.interpolate.nearest",),
}  # fmt: skip
