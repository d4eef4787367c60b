"""The operations of a SavedModel, and the complete lists of those allowed."""

import keras
from tensorflow.core.protobuf import saved_model_pb2

# Of the signatures, from both backends: checks, padding, names of classes.
SIGNATURES = """
    All ArgMax Assert Cast Const ExpandDims GatherV2 GreaterEqual Identity Less
    LessEqual LogicalAnd Max Maximum Min Mul NoOp Pack Pad Placeholder Range
    ReadVariableOp SelectV2 Shape Sigmoid Size Softmax StatefulPartitionedCall
    StridedSlice Sub Tile VarHandleOp
"""
# Of the tokenizers: all for bytes is TensorFlow's own.
BYTES = "AddV2 DecodePaddedRaw Equal StringLength Substr"
WORDPIECES = """
    CaseFoldUTF8 Equal FastWordpieceTokenizeWithOffsets RaggedTensorToTensor
    UnicodeTranscode
"""
# Of the models.
JAX = "PreventGradient XlaCallModule"
TENSORFLOW = """
    Abs AddV2 BatchMatMulV2 BiasAdd ConcatV2 Cos Einsum Elu Equal Erfc Exp
    Expm1 Fill Floor FloorDiv Greater IdentityN LogicalOr MatMul Mean Minimum
    Neg NotEqual OnesLike Prod RealDiv Relu Reshape ReverseV2 Round Rsqrt Sin
    Softplus Split Square SquaredDifference Squeeze StopGradient Sum Transpose
    ZerosLike
"""
# Of what reads the variables from the files, when a SavedModel is loaded.
RESTORING = """
    AssignVariableOp Const DisableCopyOnRead Identity MergeV2Checkpoints NoOp
    Pack ReadVariableOp RestoreV2 SaveV2 Select ShardedFilename
    StaticRegexFullMatch StringJoin
"""


def check_operations(path, tokenizer_operations):
    """Fails unless each operation of an export is in its list."""
    model = TENSORFLOW if keras.backend.backend() == "tensorflow" else JAX
    allowed = f"{SIGNATURES} {tokenizer_operations} {model}".split()
    answering, restoring = operations(path)
    assert answering - set(allowed) == set()
    assert restoring - set(RESTORING.split()) == set()


def operations(path):
    """Returns what all graphs and functions of a SavedModel call.

    Those that answer, and those that save and restore variables.
    """
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((path / "saved_model.pb").read_bytes())
    answering, restoring = set(), set()
    for meta_graph in saved.meta_graphs:
        graph = meta_graph.graph_def
        answering |= {node.op for node in graph.node}
        for function in graph.library.function:
            is_restoring = function.signature.name.startswith(
                ("__inference__traced_restore", "__inference__traced_save")
            )
            found = restoring if is_restoring else answering
            found |= {node.op for node in function.node_def}
    return answering, restoring
