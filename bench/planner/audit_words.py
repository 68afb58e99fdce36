# ruff: noqa: E501 - one phrase a line reads better than broken ones
"""Phrases of the audit in English and Chinese."""

from __future__ import annotations

WORDS: dict[str, dict[str, str]] = {
    "en": {
        "title": "Audit of claims", "id": "claim", "statement": "what is claimed", "stated": "stated",
        "formula": "formula", "measured": "measured", "verdict": "verdict", "why": "why", "document": "Document",
        "agrees": "agrees", "off": "off by", "impossible": "impossible", "contradicts": "contradicts itself",
        "condition": "needs a condition",
        "why.formula": "{formula}", "why.arithmetic": "{expression} is right; no formula is involved",
        "why.comparison": "by its own numbers {expression} is false",
        "why.sum": "by its own numbers {expression} = {result:.4g}",
        "why.floor": "below the arithmetic floor of {bound:.4g} {unit}", "why.ceiling": "above the ceiling of {bound:.4g} {unit}",
        "why.unknown": "{message}", "why.ambiguous": "ambiguous; {message}",
        "why.missing": "says nothing without: {fields}", "why.statement": "states no number that can be checked",
        "why.measurement": "only a measurement can tell", "why.if": "holds only with {when}",
        "why.between": "possible, depending on {fields}", "why.flag": "the catalogue says otherwise",
        "why.off": "{difference} ({formula})", "why.nothing": "nothing of the kind exists ({formula})",
        "summary": "{n} claims: {counts}.",
        "meters": "Bytes are live tensors of the fullest rank at its peak, without context and fragmentation; GB = 10⁹.",
    },
    "zh": {
        "title": "断言审计", "id": "编号", "statement": "断言", "stated": "文档数值", "formula": "公式", "measured": "实测",
        "verdict": "结论", "why": "依据", "document": "文档",
        "agrees": "相符", "off": "偏差", "impossible": "不可能", "contradicts": "自相矛盾", "condition": "缺少条件",
        "why.formula": "{formula}", "why.arithmetic": "{expression} 计算无误，不涉及公式",
        "why.comparison": "按其自身数字，{expression} 不成立", "why.sum": "按其自身数字，{expression} = {result:.4g}",
        "why.floor": "低于算术下限 {bound:.4g} {unit}", "why.ceiling": "高于上限 {bound:.4g} {unit}",
        "why.unknown": "{message}", "why.ambiguous": "名称有歧义：{message}", "why.missing": "缺少以下条件则无法判断：{fields}",
        "why.statement": "没有可核对的数字", "why.measurement": "只有实测才能判断", "why.if": "仅在以下条件下成立：{when}",
        "why.between": "取决于未说明的 {fields}，可能成立", "why.flag": "与硬件目录不符",
        "why.off": "{difference}（{formula}）", "why.nothing": "此项并不存在（{formula}）",
        "summary": "共 {n} 条断言：{counts}。",
        "meters": "字节数为峰值时占用最多的 rank 上的存活张量，不含上下文与碎片；GB = 10⁹。",
    },
}  # fmt: skip

FORMULAS_ZH = {
    "N_trained × bytes": "可训练参数 × 字节", "N × bytes": "N × 字节", "N_trained × moments": "可训练参数 × 动量字节",
    "N × (weights + gradients + masters + moments)": "N ×（权重 + 梯度 + 主权重 + 动量）",
    "states + activations + logits, peak over phases": "状态 + 激活 + logits，取各阶段峰值",
    "L × tokens × bytes per token": "L × token 数 × 每 token 字节", "1 − kept / all": "1 − 保留 / 全部",
    "1 − rate with / rate without": "1 − 开启时速率 / 关闭时速率",
    "hardware / model FLOPs − 1": "硬件 FLOPs / 模型 FLOPs − 1",
    "(activations + logits) / peak": "（激活 + logits）/ 峰值",
    "activations(2s) / activations(s)": "激活(2s) / 激活(s)", "0: training keeps no cache": "0：训练不保留缓存",
    "2·L·kv_dim·b·s·bytes is linear in s": "2·L·kv_dim·b·s·字节，与 s 成线性", "peak − peak": "峰值之差",
    "peak(r) / peak(r′) − 1": "峰值(r) / 峰值(r′) − 1", "Σ r (in + out) × 16 bytes": "Σ r (in + out) × 16 字节",
    "Σ r (in + out) × bytes": "Σ r (in + out) × 字节", "L Σ r (in + out) × bytes": "L Σ r (in + out) × 字节",
    "2 Σ r (in + out) × bytes": "2 Σ r (in + out) × 字节",
    "0: x → A → B, the product B·A is never formed": "0：先乘 A 再乘 B，从不生成 B·A",
    "one matrix at a time": "每次只有一个矩阵", "1 − least / most peak": "1 − 最小 / 最大峰值",
    "1 − flash / eager": "1 − flash / eager", "0: one rank shards nothing": "0：单个 rank 不切分任何东西",
    "0: every rank holds the same": "0：各 rank 相同", "LoRA peak / full peak": "LoRA 峰值 / 全量峰值",
    "1 − LoRA / full": "1 − LoRA / 全量", "roofline": "roofline 模型", "LoRA rate / full rate": "LoRA 速率 / 全量速率",
    "search over layouts": "搜索各种并行布局", "catalogue": "硬件目录", "DP = GPUs / (TP × PP)": "DP = GPU 数 / (TP × PP)",
}  # fmt: skip
"""Formulas that hold words; those of symbols alone are the same in both languages."""
