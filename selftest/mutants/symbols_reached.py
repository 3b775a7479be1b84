"""More source faults of family ``symbols``: where Python evaluates what, how it is reached, how certain it is."""

from __future__ import annotations

from waveproof.selftest.mutants import symbols_sources as sources
from waveproof.selftest.planted import Planted

MORE: tuple[Planted, ...] = (
    sources.planted(
        "subscript of None",
        "A table is None here.",
        "reachable None subscripted",
        """
        if _is_cuda:
            from sgl_kernel import TABLE
        else:
            TABLE = None
        def tuned(m):
            return TABLE[m]
        """,
    ),
    sources.planted(
        "module attribute",
        "module.name is asked for a name that the module binds under CUDA only.",
        "reachable AttributeError",
        """
        from . import ops
        def sample(p):
            return ops.renorm(p)
        """,
        ops="""
        from .utils import is_cuda
        if is_cuda():
            def renorm(p):
                return p
        """,
    ),
    sources.planted(
        "default argument",
        "A default is evaluated when the function is defined.",
        "reachable NameError",
        """
        if _is_cuda:
            WIDTH = 128
        def sample(p, width=WIDTH):
            return p
        """,
    ),
    sources.planted(
        "decorator",
        "A decorator is evaluated at import.",
        "reachable NameError",
        """
        if _is_cuda:
            from sgl_kernel import fused
        @fused
        def sample(p):
            return p
        """,
    ),
    sources.planted(
        "annotation",
        "Without the future import an annotation is evaluated at import.",
        "reachable NameError",
        """
        if _is_cuda:
            from sgl_kernel import Plan
        def sample(p, plan: Plan):
            return p
        """,
    ),
    sources.planted(
        "deleted",
        "Deleted on ROCm, and used.",
        "reachable NameError",
        """
        def renorm(p):
            return p
        if is_hip():
            del renorm
        def sample(p):
            return renorm(p)
        """,
    ),
    sources.planted(
        "after the handler",
        "except ... as error unbinds the name behind it.",
        "reachable NameError",
        """
        error = ''
        try:
            import torch_npu
        except ImportError as error:
            pass
        def why():
            return error
        """,
    ),
    sources.planted(
        "torch.version",
        "The platform is asked of torch itself, on both sides of an and.",
        "reachable NameError",
        """
        import torch
        if torch.version.cuda and not torch.version.hip:
            from sgl_kernel import renorm
        def sample(p):
            return renorm(p)
        """,
    ),
    sources.planted(
        "in a comprehension",
        "The use is inside a comprehension, a lambda and a conditional expression.",
        "reachable NameError",
        """
        def sample(rows):
            return [(lambda p: top_k_renorm_prob(p) if _is_hip else p)(row) for row in rows]
        """,
        before=sources.ONLY_CUDA,
    ),
    sources.planted(
        "method of a class that is made",
        "The fault is behind a call on self, in a mixin.",
        "reachable NameError",
        """
        class Mixin:
            def renorm(self, p):
                return top_k_renorm_prob(p)
        class Verifier(Mixin):
            def sample(self, p):
                return self.renorm(p)
        def serve(p):
            return Verifier().sample(p)
        """,
        before=sources.ONLY_CUDA,
    ),
    sources.planted(
        "guarded by an environment variable",
        "Reached only where somebody sets a variable.",
        "guarded NameError",
        """
        import os

        if _is_cuda:
            from sgl_kernel import top_k_renorm_prob
        def sample(p):
            if os.environ.get('FAST'):
                return top_k_renorm_prob(p)
        """,
    ),
    sources.planted(
        "depends on an optional package",
        "None unless a package is installed, and called in any case.",
        "unknown None called",
        """
        try:
            from flashinfer import renorm
        except ImportError:
            renorm = None
        def sample(p):
            return renorm(p)
        """,
    ),
    sources.planted(
        "nobody calls it",
        "A private function that nothing leads to.",
        "unknown NameError",
        """
        def _sample(probs, info):
            return top_k_renorm_prob(probs, info.top_ks)
        """,
        before=sources.ONLY_CUDA,
    ),
)
