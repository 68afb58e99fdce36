"""The words of a comparison in English and Chinese. Every key exists in both."""

# ruff: noqa: E501 (a Chinese character counts as two columns, and sentences stay whole)

from __future__ import annotations

_EN = {
    "title": "Comparison: {baseline} → {candidate}",
    "worse": "**Worse.** {what}.",
    "fine": "**Nothing worse** among {cases} cases.",
    "unclear": "**Inconclusive.** Nothing is shown to be worse, and {n} results leave it open.",
    "incomparable": "**Not comparable.** {n} results were measured under different conditions.",
    "exit": "Exit code {code}.", "comma": ", ", "semicolon": "; ", "colon": ": ",
    "count_regressed": "{n} result(s) in {cases} case(s) regressed", "count_newly failing": "{n} case(s) newly fail",
    "count_missing": "{n} result(s) are missing", "count_set": "over the whole set {metrics} regressed",
    "axis_found": "Meant to differ (found, `--axis` narrows it): {names}.",
    "axis_stated": "Meant to differ (`--axis`): {names}.",
    "axis_none": "Meant to differ: nothing was found to differ in software.",
    "environment_unknown": "The environment of a side is not recorded, so differences in it are not known.",
    "incomplete": "{label} is incomplete: {reason}.",
    "h_summary": "Summary", "h_environment": "What differs between the environments", "h_worse": "What got worse",
    "h_better": "What got better", "h_open": "Inconclusive", "h_bars": "Not comparable, missing, failing",
    "h_where": "Where the changes sit", "h_phases": "Phases", "h_trend": "Trend", "h_rules": "How this was judged",
    "h_rest": "Unchanged",
    "case": "case", "metric": "metric", "verdict": "verdict", "ratio": "ratio", "interval": "95 % interval",
    "q": "q", "launches": "launches", "note": "note", "cases": "cases", "name": "what", "role": "role",
    "component": "most of it in", "change": "change", "phase": "phase", "baseline": "baseline",
    "candidate": "candidate", "set_wide": "all cases", "min_effect": "counts from", "detect": "“unchanged” rules out",
    "better": "better", "lower": "lower", "higher": "higher", "kind": "judged by", "noise": "noise between launches",
    "borrowed": "borrowed df", "shared": "shared by a round", "unbounded": "unbounded",
    "noisy": "launches", "exact": "tolerance", "share": "examples",
    "v_regressed": "regressed", "v_improved": "improved", "v_unchanged": "unchanged", "v_inconclusive": "inconclusive",
    "v_not comparable": "not comparable", "v_newly failing": "newly failing", "v_newly passing": "newly passing",
    "v_both failing": "both failing", "v_missing": "missing",
    "role_axis": "meant to differ", "role_machine": "machine: time and memory not comparable",
    "role_beyond": "beyond the axis: not comparable",
    "n_noisy_change": "", "n_exact_change": "launches agree", "n_identical": "identical",
    "n_within_tolerance": "within the tolerance", "n_single_small": "run {more} more a side",
    "n_small_change": "real, but below the threshold", "n_ruled_out": "",
    "n_wide_interval": "interval too wide: run {more} more a side",
    "n_few_launches": "fewer than {needed} launches: run {more} more a side",
    "n_not_positive": "no positive value ({side})", "n_paired": "{examples} examples, paired",
    "n_unpaired": "{examples} examples, unpaired", "n_same_answers": "the same answers to {examples} examples",
    "n_few_examples": "{examples} examples; about {needed} would tell",
    "n_differing": "differ in: {fields}", "n_not_measured": "not measured ({side})",
    "n_vanished": "the case vanished", "n_new_case": "not in the baseline", "n_never_run": "planned, never run",
    "n_failures": "{failures}",
    "f_curve_short": "loss curve ends after {at} of {steps} steps", "f_curve_gap": "loss of step {at} is not finite",
    "f_launch": "launch {launch}: {what}", "f_of": "{failed} of {launches}",
    "side_baseline": "baseline", "side_candidate": "candidate", "side_both": "both sides",
    "part_engine": "engine (forward, backward, step, communication)", "part_data_wait": "waiting for data",
    "part_loop": "loop outside the engine", "all_of_it": "all of it: {name}", "most_of_it": "{share}: {name}",
    "spread_out": "spread: {parts}",
    "more_rows": "… and {n} more in `compare.csv`.", "none": "None.",
    "unchanged_count": "{n} results are unchanged; `compare.csv` lists them with their intervals.",
    "phases_note": "Median of the launches, summed over the cases that ran on both sides; shown without a verdict.",
    "trend_note": "Ratio to the first release. **Bold ▲ ▼** marks a release at which the level rose or fell. "
    "The verdicts above hold the last release against the first.",
    "trend_untested": "Too few launches and releases to tell a change from noise, so none is marked.",
    "trend_rest": "{n} more cases without a change point are in `compare.json`.",
    "all_cases": "all cases (geometric mean)",
    "rule_unit": "The unit is the launch: steps inside one launch are correlated and are no repeats. Time is compared "
    "as the ratio of geometric means over launches.",
    "rule_pool": "The variance between launches is pooled over the cases (empirical Bayes, Smyth 2004): each case "
    "borrows degrees of freedom from the others, many where their variances agree, few where they do not. Noise that "
    "all cases of a round share lowers them. A case whose two sides differ in noise falls back on its own launches "
    "(Welch).",
    "rule_fdr": "Regressed and improved: false discovery rate {fdr} over the cases of a metric (Benjamini-Hochberg), "
    "at least {min} launches a side, and at least the size in the table.",
    "rule_unchanged": "Unchanged: the 90 % interval lies inside ± the size in the table, with {trusted} launches a side; "
    "with fewer, the 99.98 % interval. Everything else is inconclusive.",
    "rule_set": "All cases: geometric mean of the ratios, with the launch number as the unit, at level {level}. A drift "
    "of the machine between the two sides looks like a change; interleaved runs prevent that.",
    "rule_exact": "Memory and bytes: one launch is enough. Above the size in the table is a change. Where launches of "
    "one side differ by more, the case is judged like time.",
    "rule_loss": "Losses of equal seeds and data: one launch is believed from the second size on; between the two sizes, "
    "three launches that agree are needed.",
    "rule_share": "Accuracy: shares of held-out examples, paired by example where `eval.parquet` lists them (McNemar; "
    "t-test over examples for several launches), else two binomial samples. Sizes are percentage points.",
    "aside": "Set aside, because it stands far apart from the other launches of its case: {names}.",
    "figure_ratio": "{metric}: candidate ÷ baseline, 95 % intervals", "figure_trend": "{metric}: ratio to the first release",
    "axis_ratio": "candidate ÷ baseline", "rank_axis": "cases, sorted", "release": "release",
    "change_point": "change point", "other_cases": "other cases",
    "m_status": "status", "m_step_s": "step time", "m_samples_per_s": "samples/s", "m_tokens_per_s": "tokens/s",
    "m_allocated_peak_bytes": "peak memory (allocated)", "m_reserved_peak_bytes": "peak memory (reserved)",
    "m_tally_peak_bytes": "peak memory (tally)", "m_device_peak_bytes": "memory in use (driver)",
    "m_resident_peak_bytes": "peak memory (resident set)", "m_checkpoint_bytes": "exported checkpoint",
    "m_resume_bytes": "resume checkpoint", "m_exact_match": "exact match", "m_token_accuracy": "token accuracy",
    "m_eval_loss": "held-out loss", "m_train_loss": "training loss (last quarter)", "m_startup_s": "startup time",
    "m_save_s": "save time", "m_load_s": "load time", "m_export_s": "export time", "m_wall_s": "wall time",
}  # fmt: skip
_ZH = {
    "title": "对比：{baseline} → {candidate}",
    "worse": "**变差。** {what}。",
    "fine": "**没有变差**，共 {cases} 个用例。",
    "unclear": "**尚无定论。** 没有证据表明变差，但有 {n} 项结果不能下结论。",
    "incomparable": "**不可比。** {n} 项结果的测量条件不同。",
    "exit": "退出码 {code}。", "comma": "、", "semicolon": "；", "colon": "：",
    "count_regressed": "{cases} 个用例的 {n} 项结果变差", "count_newly failing": "{n} 个用例新近失败",
    "count_missing": "{n} 项结果缺失", "count_set": "就全部用例而言，{metrics}变差",
    "axis_found": "预期不同之处（自动发现，可用 `--axis` 限定）：{names}。",
    "axis_stated": "预期不同之处（`--axis`）：{names}。",
    "axis_none": "预期不同之处：软件方面没有发现差异。",
    "environment_unknown": "有一方没有记录环境，因此不知道环境有何差异。",
    "incomplete": "{label} 不完整：{reason}。",
    "h_summary": "概要", "h_environment": "环境的差异", "h_worse": "变差的结果",
    "h_better": "变好的结果", "h_open": "尚无定论", "h_bars": "不可比、缺失、失败",
    "h_where": "变化出在哪里", "h_phases": "各阶段", "h_trend": "趋势", "h_rules": "判定方法",
    "h_rest": "没有变化",
    "case": "用例", "metric": "指标", "verdict": "判定", "ratio": "比值", "interval": "95 % 区间",
    "q": "q", "launches": "启动次数", "note": "说明", "cases": "用例数", "name": "项目", "role": "作用",
    "component": "主要出在", "change": "变化", "phase": "阶段", "baseline": "基准",
    "candidate": "候选", "set_wide": "全部用例", "min_effect": "起算幅度", "detect": "“没有变化”所排除的幅度",
    "better": "更好", "lower": "更低", "higher": "更高", "kind": "判定依据", "noise": "启动之间的噪声",
    "borrowed": "借用的自由度", "shared": "同轮共有", "unbounded": "无上限",
    "noisy": "多次启动", "exact": "容差", "share": "样本",
    "v_regressed": "变差", "v_improved": "变好", "v_unchanged": "没有变化", "v_inconclusive": "尚无定论",
    "v_not comparable": "不可比", "v_newly failing": "新近失败", "v_newly passing": "恢复通过",
    "v_both failing": "两方都失败", "v_missing": "缺失",
    "role_axis": "预期不同", "role_machine": "机器不同：时间和内存不可比",
    "role_beyond": "超出对比轴：不可比",
    "n_noisy_change": "", "n_exact_change": "各次启动一致", "n_identical": "完全相同",
    "n_within_tolerance": "在容差之内", "n_single_small": "每方再启动 {more} 次",
    "n_small_change": "确有变化，但低于起算幅度", "n_ruled_out": "",
    "n_wide_interval": "区间太宽：每方再启动 {more} 次",
    "n_few_launches": "启动少于 {needed} 次：每方再启动 {more} 次",
    "n_not_positive": "没有正值（{side}）", "n_paired": "{examples} 个样本，成对比较",
    "n_unpaired": "{examples} 个样本，非成对", "n_same_answers": "{examples} 个样本的回答相同",
    "n_few_examples": "{examples} 个样本；约需 {needed} 个才能判定",
    "n_differing": "不同之处：{fields}", "n_not_measured": "没有测量（{side}）",
    "n_vanished": "用例消失", "n_new_case": "基准中没有", "n_never_run": "有计划，没有运行",
    "n_failures": "{failures}",
    "f_curve_short": "损失曲线在 {steps} 步中的第 {at} 步后中断", "f_curve_gap": "第 {at} 步的损失不是有限数",
    "f_launch": "第 {launch} 次启动：{what}", "f_of": "{launches} 次中 {failed} 次",
    "side_baseline": "基准", "side_candidate": "候选", "side_both": "两方",
    "part_engine": "引擎（前向、反向、更新、通信）", "part_data_wait": "等待数据",
    "part_loop": "引擎之外的循环", "all_of_it": "全部出在：{name}", "most_of_it": "{share} 出在：{name}",
    "spread_out": "分散：{parts}",
    "more_rows": "……其余 {n} 项见 `compare.csv`。", "none": "无。",
    "unchanged_count": "{n} 项结果没有变化，区间见 `compare.csv`。",
    "phases_note": "各次启动的中位数，对两方都运行过的用例求和；只供参考，不作判定。",
    "trend_note": "相对于第一个版本的比值。**加粗的 ▲ ▼** 标出水平上升或下降的版本。上文的判定是最后一个版本与第一个版本之比。",
    "trend_untested": "启动次数和版本太少，分不清变化与噪声，因此没有标记。",
    "trend_rest": "另有 {n} 个用例没有变化点，见 `compare.json`。",
    "all_cases": "全部用例（几何平均）",
    "rule_unit": "统计单位是一次启动：同一次启动内的各步相互关联，不算重复。时间按各次启动的几何平均之比来比较。",
    "rule_pool": "启动之间的方差在各用例间合并估计（经验贝叶斯，Smyth 2004）：每个用例向其他用例借用自由度，方差一致时借得多，"
    "不一致时借得少；同一轮中各用例共有的噪声使之减少。两方噪声明显不同的用例只用自己的启动（Welch）。",
    "rule_fdr": "变差与变好：同一指标各用例的错误发现率为 {fdr}（Benjamini-Hochberg），每方至少 {min} 次启动，且不小于表中的幅度。",
    "rule_unchanged": "没有变化：每方有 {trusted} 次启动时，90 % 区间落在表中幅度之内；次数更少时用 99.98 % 区间。其余都是尚无定论。",
    "rule_set": "全部用例：各比值的几何平均，以启动序号为单位，显著性水平 {level}。两方之间机器状态的漂移看起来就像变化，"
    "交错运行可以避免。",
    "rule_exact": "内存与字节：一次启动即可判定，超过表中幅度即为变化。同一方各次启动相差更多时，按时间的方法判定。",
    "rule_loss": "种子和数据相同的损失：达到第二个幅度时一次启动即可采信；介于两者之间需要三次一致的启动。",
    "rule_share": "准确率：留出样本中的比例；有 `eval.parquet` 时按样本成对比较（McNemar；多次启动用对样本的 t 检验），否则按两个二项样本。"
    "幅度为百分点。",
    "aside": "因与同一用例的其他启动相差太远而搁置：{names}。",
    "figure_ratio": "{metric}：候选 ÷ 基准，95 % 区间", "figure_trend": "{metric}：相对于第一个版本的比值",
    "axis_ratio": "候选 ÷ 基准", "rank_axis": "用例（已排序）", "release": "版本",
    "change_point": "变化点", "other_cases": "其他用例",
    "m_status": "状态", "m_step_s": "每步时间", "m_samples_per_s": "样本/秒", "m_tokens_per_s": "词元/秒",
    "m_allocated_peak_bytes": "内存峰值（已分配）", "m_reserved_peak_bytes": "内存峰值（已保留）",
    "m_tally_peak_bytes": "内存峰值（计数）", "m_device_peak_bytes": "占用的内存（驱动）",
    "m_resident_peak_bytes": "内存峰值（常驻集）", "m_checkpoint_bytes": "导出的检查点",
    "m_resume_bytes": "续训检查点", "m_exact_match": "完全匹配率", "m_token_accuracy": "词元准确率",
    "m_eval_loss": "留出集损失", "m_train_loss": "训练损失（最后四分之一）", "m_startup_s": "启动时间",
    "m_save_s": "保存时间", "m_load_s": "加载时间", "m_export_s": "导出时间", "m_wall_s": "总时间",
}  # fmt: skip
WORDS = {"en": _EN, "zh": _ZH}


class CompareWords:
    """One language; call it with a key and the values of its placeholders."""

    def __init__(self, language: str) -> None:
        """Choose `en` or `zh`."""
        self.language = language
        self._words = WORDS[language]

    def __call__(self, key: str, **values: object) -> str:
        """The text of a key; raises KeyError for an unknown one, which only a mistake in the code can cause."""
        text = self._words[key]
        return text.format(**values) if values else text

    def get(self, key: str, otherwise: str) -> str:
        """The text of a key, or another text for names that records bring along."""
        return self._words.get(key, otherwise)
