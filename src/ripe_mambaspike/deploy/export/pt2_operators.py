"""The operators that a `.pt2` may call without `--trust`: those that the graphs of this package are made of.

Each computes a tensor or a size from its arguments and does nothing else: none opens a file, calls back into Python or
reads memory that is not a tensor's. A new kind of layer that needs another one adds it here.
"""

SIZES = {f"_operator.{name}" for name in ("add", "sub", "mul", "floordiv", "mod", "neg")}
NAMES = """
    __and__.Tensor __or__.Tensor _assert_tensor_metadata.default add.Tensor addcmul.default alias.default
    amax.default amin.default arange.default arange.start bmm.default cat.default chunk.default clamp.default
    clone.default conv1d.default conv2d.default cumsum.default detach.default detach_.default div.Tensor
    div.Tensor_mode eq.Scalar
    eq.Tensor exp.default expand.default flatten.using_ints flip.default gather.default ge.Scalar ge.Tensor
    gelu.default gru.input gt.Scalar gt.Tensor index_select.default layer_norm.default le.Scalar le.Tensor
    lift_fresh_copy.default linear.default lt.Scalar lt.Tensor matmul.default maximum.default mean.dim
    minimum.default mul.Tensor neg.default new_ones.default new_zeros.default pad.default permute.default
    relu.default reshape.default rsub.Scalar scaled_dot_product_attention.default select.int sigmoid.default
    silu.default slice.Tensor softmax.int softplus.default split.Tensor split_with_sizes.default squeeze.dim
    stack.default sub.Tensor sum.dim_IntList sym_size.int to.dtype topk.default transpose.int unbind.int
    unflatten.int unsqueeze.default view_as.default where.ScalarOther where.self zeros_like.default
"""
TENSORS = {f"torch.ops.aten.{name}" for name in NAMES.split()}
OPERATORS = SIZES | TENSORS
WORDS = ("trunc", "floor", "constant")  # all that an argument may say: how a quotient is rounded, what pads
