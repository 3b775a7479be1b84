"""Right sources of family ``symbols`` that somebody might take for wrong."""

from __future__ import annotations

from waveproof.selftest.mutants import symbols_sources as sources
from waveproof.selftest.planted import Planted

RIGHT: tuple[Planted, ...] = (
    sources.planted(
        "bound on both",
        "An import for each platform.",
        "",
        """
        elif _is_hip:
            from .own import top_k_renorm_prob
        def sample(probs, info):
            return top_k_renorm_prob(probs, info.top_ks)
        """,
        before=sources.ONLY_CUDA,
        own="""
        def top_k_renorm_prob(p, k):
            return p
        """,
    ),
    sources.planted(
        "guarded by the flag",
        "Used under the condition that it is bound under.",
        "",
        """
        def sample(p):
            if _is_cuda:
                return top_k_renorm_prob(p)
            return p
        """,
        before=sources.ONLY_CUDA,
    ),
    sources.planted(
        "greedy on HIP",
        "Later releases: the branch before takes HIP.",
        "",
        """
        def sample(p, info):
            if info.is_all_greedy or _is_hip:
                return p
            return top_k_renorm_prob(p)
        """,
        before=sources.ONLY_CUDA,
    ),
    sources.planted(
        "is not None",
        "None elsewhere, and asked before it is called.",
        "",
        """
        def sample(p):
            if top_k_renorm_prob is not None:
                return top_k_renorm_prob(p)
            return p
        """,
        before=sources.NONE_ELSEWHERE,
    ),
    sources.planted(
        "early return",
        "None elsewhere: the function returns first.",
        "",
        """
        def sample(p):
            if not top_k_renorm_prob:
                return p
            return top_k_renorm_prob(p)
        """,
        before=sources.NONE_ELSEWHERE,
    ),
    sources.planted(
        "refused with an error of its own",
        "A clear error is raised before.",
        "",
        """
        def sample(p):
            if top_k_renorm_prob is None:
                raise RuntimeError('no kernel')
            return top_k_renorm_prob(p)
        """,
        before=sources.NONE_ELSEWHERE,
    ),
    sources.planted(
        "a check that raises",
        "A helper refuses the platform before the name is used.",
        "",
        """
        def need_cuda():
            if not _is_cuda:
                raise RuntimeError('CUDA only')
        def sample(p):
            need_cuda()
            return top_k_renorm_prob(p)
        """,
        before=sources.ONLY_CUDA,
    ),
    sources.planted(
        "short circuit",
        "x is not None and x(p); callable(x); x or default.",
        "",
        """
        def sample(p):
            a = top_k_renorm_prob is not None and top_k_renorm_prob(p)
            b = callable(top_k_renorm_prob) and top_k_renorm_prob(p)
            return a, b, (top_k_renorm_prob or len)(p)
        """,
        before=sources.NONE_ELSEWHERE,
    ),
    sources.planted(
        "caught",
        "NameError and TypeError are what the function waits for.",
        "",
        """
        def sample(p):
            try:
                return top_k_renorm_prob(p)
            except (NameError, TypeError):
                return p
        """,
        before=sources.ONLY_CUDA,
    ),
    sources.planted(
        "same variable",
        "Bound and used under one undecided flag.",
        "",
        """
        if _use_aiter:
            from aiter import renorm
        def sample(p):
            if _use_aiter:
                return renorm(p)
            return p
        """,
    ),
    sources.planted(
        "a flag for the package",
        "HAS_X says whether the import has worked.",
        "",
        """
        try:
            from flashinfer import renorm
            HAS = True
        except ImportError:
            HAS = False
        def sample(p):
            return renorm(p) if HAS else p
        """,
    ),
    sources.planted(
        "set later",
        "A global that another function sets.",
        "",
        """
        _cache = None
        def init(x):
            global _cache
            _cache = x
        def get(k):
            return _cache[k]
        """,
    ),
    sources.planted(
        "TYPE_CHECKING",
        "A name for annotations that are never evaluated.",
        "",
        """
        if is_hip():
            pass
        """,
        typed="""
        from __future__ import annotations
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from sgl_kernel import Plan
        def sample(p: Plan) -> Plan:
            return p
        """,
    ),
    sources.planted(
        "only the module of CUDA",
        "Asked for only where the module is imported at all.",
        "",
        """
        if _is_cuda:
            from .cuda_only import renorm
        else:
            renorm = len
        def sample(p):
            return renorm(p)
        """,
        _cuda_only="from sgl_kernel import renorm\n",
        cuda_only="""
        def renorm(p):
            return p
        """,
    ),
    sources.planted(
        "lazy module",
        "__getattr__ of a module makes its names when they are asked for.",
        "",
        """
        from .lazy import renorm
        from . import lazy
        def sample(p):
            return renorm(lazy.other(p))
        """,
        lazy="""
        def __getattr__(name):
            return len
        """,
    ),
    sources.planted(
        "first round",
        "A loop binds the name in its first round.",
        "",
        """
        def sample(rows):
            for at, row in enumerate(rows):
                if at > 0:
                    print(last)
                last = row
        """,
    ),
    sources.planted(
        "data decides",
        "A name that depends on the data is no matter of the platform.",
        "",
        """
        def sample(p, k):
            if k > 1:
                scale = 2
            if k > 1:
                p = p * scale
            return p
        """,
    ),
    sources.planted(
        "named expression",
        "Bound in the condition itself.",
        "",
        """
        def sample(p):
            if (kernel := top_k_renorm_prob) is not None:
                return kernel(p)
            return p
        """,
        before=sources.NONE_ELSEWHERE,
    ),
)
