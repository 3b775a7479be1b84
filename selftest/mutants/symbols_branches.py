"""Source faults of family ``symbols``: a name is used on HIP where it is unbound or None."""

from __future__ import annotations

from waveproof.selftest.mutants import symbols_sources as sources
from waveproof.selftest.planted import Planted

FAULTS: tuple[Planted, ...] = (
    sources.planted(
        "case study",
        "The helper is imported under CUDA and called whenever a request is not greedy.",
        "reachable NameError",
        """
        if is_cuda():
            from sgl_kernel import top_k_renorm_prob
        def sample(probs, info):
            if info.is_all_greedy or is_npu():
                return probs.argmax(-1)
            return top_k_renorm_prob(probs, info.top_ks)
        """,
    ),
    sources.planted(
        "None elsewhere",
        "sglang#32569: bound to None on ROCm, and called by the first request that filters.",
        "reachable None called",
        """
        def sample(probs, info):
            return top_k_renorm_prob(probs, info.top_ks)
        """,
        before=sources.NONE_ELSEWHERE,
    ),
    sources.planted(
        "guard on the other flag",
        "sglang#37134's kind: the guard asks for the NPU, the import was for CUDA.",
        "reachable NameError",
        """
        if not is_npu():
            def sample(probs, info):
                return top_k_renorm_prob(probs, info.top_ks)
        """,
        before=sources.ONLY_CUDA,
    ),
    sources.planted(
        "local import in a dead branch",
        "A function imports it under CUDA only and uses it in any case.",
        "reachable UnboundLocalError",
        """
        def sample(probs):
            if _is_cuda:
                from sgl_kernel import renorm
            return renorm(probs)
        """,
    ),
    sources.planted(
        "local assignment in a dead branch",
        "A local name is assigned under CUDA only.",
        "reachable UnboundLocalError",
        """
        def sample(probs):
            if not _is_hip:
                scale = 2
            return probs * scale
        """,
    ),
    sources.planted(
        "flag of another module",
        "The flag is imported, and through a third module.",
        "reachable NameError",
        """
        from .flags import FAST
        if FAST:
            from sgl_kernel import renorm
        def sample(p):
            return renorm(p)
        """,
        flags="""
        from .utils import is_cuda as asked
        FAST = asked()
        """,
    ),
    sources.planted(
        "negated flag",
        "not hip: what was meant for every other platform is missing here.",
        "reachable NameError",
        """
        if not _is_hip:
            def renorm(p):
                return p
        def sample(p):
            return renorm(p)
        """,
    ),
    sources.planted(
        "re-export",
        "The package's __init__ hands on a name that its module binds under CUDA only.",
        "reachable ImportError",
        """
        from .kernels import renorm
        """,
        **{
            "kernels/__init__": """
            from .top_k import *
            """,
            "kernels/top_k": """
            from ..utils import is_cuda
            if is_cuda():
                def renorm(p):
                    return p
            """,
        },
    ),
    sources.planted(
        "alias",
        "Imported under another name, which the other branch forgets.",
        "reachable NameError",
        """
        if _is_cuda:
            from sgl_kernel import renorm as fast_renorm
        else:
            from .slow import renorm
        def sample(p):
            return fast_renorm(p)
        """,
        slow="""
        def renorm(p):
            return p
        """,
    ),
    sources.planted(
        "conditional class",
        "A class is defined for CUDA, and a base of another one.",
        "reachable NameError",
        """
        if _is_cuda:
            class Fast:
                pass
        class Sampler(Fast):
            pass
        """,
    ),
    sources.planted(
        "except ImportError",
        "Ascend's package is never on ROCm; the handler binds None, which is called.",
        "reachable None called",
        """
        try:
            from torch_npu import renorm
        except ImportError:
            renorm = None
        def sample(p):
            return renorm(p)
        """,
    ),
    sources.planted(
        "a guard that guards nothing",
        "if x is None: pass.",
        "reachable None called",
        """
        def sample(p):
            if top_k_renorm_prob is None:
                pass
            return top_k_renorm_prob(p)
        """,
        before=sources.NONE_ELSEWHERE,
    ),
    sources.planted(
        "the wrong name is guarded",
        "Another name is asked for than is called.",
        "reachable None called",
        """
        top_p = len
        def sample(p):
            if top_p is not None:
                return top_k_renorm_prob(p)
        """,
        before=sources.NONE_ELSEWHERE,
    ),
    sources.planted(
        "or instead of and",
        "The guard holds for every request that asks for anything.",
        "reachable None called",
        """
        def sample(p, info):
            if top_k_renorm_prob is not None or info.need:
                return top_k_renorm_prob(p)
        """,
        before=sources.NONE_ELSEWHERE,
    ),
    sources.planted(
        "attribute of None",
        "The module object itself is None here.",
        "reachable None attribute",
        """
        if _is_cuda:
            import deep_gemm
        else:
            deep_gemm = None
        def run(x):
            return deep_gemm.gemm(x)
        """,
    ),
)
