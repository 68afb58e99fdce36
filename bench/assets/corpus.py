"""Text for pretraining the tiny model: a bilingual grammar over the lexicon, drawn from a seed.

Each maker below writes one kind of document that shows one plain skill: names in two languages,
order, membership, counting. The fine-tuning task (task.py) asks for combinations of these skills,
in words that no document uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from bench.assets.lexicon import CATEGORIES, CATEGORY_OF, LANGUAGES, TERMS, Term, listing

MAX_LIST = 6
ARROWS = ("->", "=>", "=", ":")


def draw_terms(rng: Random, low: int = 2, high: int = MAX_LIST) -> list[Term]:
    """Draw `low`..`high` different terms, crowded into few categories so that membership matters."""
    count = rng.randint(low, high)
    categories = rng.sample(list(CATEGORIES), rng.randint(2, 3))
    pool = [term for category in categories for term in CATEGORIES[category]]
    return rng.sample(pool if rng.random() < 0.7 else list(TERMS), count)


def _shown(rng: Random, language: str, names: dict[str, tuple[str, ...]], given: str, result: str) -> str:
    """Show one worked example of a skill, under one of the skill's names or with a bare arrow."""
    name, arrow = rng.choice(names[language]), rng.choice(ARROWS)
    return rng.choice((f"{name}: {given} {arrow} {result}", f"{name}\n{given}\n{result}", f"{given}\n{name}: {result}"))


def dictionary(rng: Random) -> str:
    """Give the other language's name of one to four terms, each on its own line."""
    source, target = rng.sample(LANGUAGES, 2)
    form = rng.choice(("{} = {}", "{}: {}", "{} -> {}", "{} 译成中文是 {}" if source == "en" else "{} means {}"))
    return "\n".join(form.format(t.say(source), t.say(target)) for t in rng.sample(TERMS, rng.randint(1, 4)))


def translation(rng: Random) -> str:
    """Translate a list, keeping its order."""
    source, target = rng.sample(LANGUAGES, 2)
    terms = draw_terms(rng)
    names = {"zh": ("翻译", "中文", "中文里叫"), "en": ("translation", "English", "in English")}
    return _shown(rng, target, names, listing(terms, source), listing(terms, target))


def reversal(rng: Random) -> str:
    """Repeat a list from its end to its beginning."""
    language, terms = rng.choice(LANGUAGES), draw_terms(rng)
    names = {"zh": ("倒过来", "反过来念"), "en": ("backwards", "reversed")}
    return _shown(rng, language, names, listing(terms, language), listing(terms[::-1], language))


def copy(rng: Random) -> str:
    """Repeat a list as it is."""
    language, terms = rng.choice(LANGUAGES), draw_terms(rng)
    names = {"zh": ("再念一遍", "照抄"), "en": ("again", "copy")}
    return _shown(rng, language, names, listing(terms, language), listing(terms, language))


def membership(rng: Random) -> str:
    """Say of one to three terms which category each belongs to."""
    language, said = rng.choice(LANGUAGES), rng.choice(LANGUAGES)
    form = rng.choice({"zh": ("{}属于{}", "{} 是 {}"), "en": ("{} belongs to {}", "{} is one of the {}")}[language])
    terms = rng.sample(TERMS, rng.randint(1, 3))
    return "\n".join(form.format(t.say(said), CATEGORY_OF[t].say(language)) for t in terms)


def members(rng: Random) -> str:
    """List some members of a category."""
    language, (category, pool) = rng.choice(LANGUAGES), rng.choice(list(CATEGORIES.items()))
    return f"{category.say(language)}: {listing(rng.sample(pool, rng.randint(2, MAX_LIST)), language)}"


def grouping(rng: Random) -> str:
    """Split a mixed list into its categories, each group in the list's order."""
    language, terms = rng.choice(LANGUAGES), draw_terms(rng, low=3)
    groups = {CATEGORY_OF[term]: [t for t in terms if CATEGORY_OF[t] == CATEGORY_OF[term]] for term in terms}
    lines = [f"{category.say(language)}: {listing(group, language)}" for category, group in groups.items()]
    rng.shuffle(lines)
    return "\n".join([listing(terms, language), *lines])


def selection(rng: Random) -> str:
    """Pick the members of one category out of a mixed list, or all the others."""
    language, said, terms = rng.choice(LANGUAGES), rng.choice(LANGUAGES), draw_terms(rng, low=3)
    category = CATEGORY_OF[rng.choice(terms)]
    inside = rng.random() < 0.6 or {CATEGORY_OF[term] for term in terms} == {category}
    chosen = [term for term in terms if (CATEGORY_OF[term] == category) == inside]
    name = category.say(said) if inside else {"zh": "不是{}", "en": "not {}"}[said].format(category.say(said))
    return _shown(rng, said, {said: (name,)}, listing(terms, language), listing(chosen, language))


def kinds(rng: Random) -> str:
    """Name the category of each term of a list."""
    language, terms = rng.choice(LANGUAGES), draw_terms(rng)
    names = {"zh": ("种类", "都是什么"), "en": ("kinds", "what they are")}
    return _shown(rng, language, names, listing(terms, language), listing([CATEGORY_OF[t] for t in terms], language))


def counting(rng: Random) -> str:
    """Count a list, or each category in it."""
    language, terms = rng.choice(LANGUAGES), draw_terms(rng, low=1)
    if rng.random() < 0.3:
        names = {"zh": ("个数", "一共"), "en": ("size", "in all")}
        return _shown(rng, language, names, listing(terms, language), str(len(terms)))
    found = [CATEGORY_OF[t] for t in terms]
    tallies = [f"{category.say(language)} {found.count(category)}" for category in dict.fromkeys(found)]
    return "\n".join([listing(terms, language), *tallies])


def numbers(rng: Random) -> str:
    """Write digits in order: a run with a fixed step, or a jumble put in order."""
    if rng.random() < 0.4:
        step = rng.choice((-2, -1, 1, 2))
        return " ".join(map(str, range(rng.randint(0, 9), 10 if step > 0 else -1, step)))
    digits = rng.sample(range(10), rng.randint(2, MAX_LIST))
    language, down = rng.choice(LANGUAGES), rng.random() < 0.5
    names = {"zh": ("从大到小",) if down else ("从小到大",), "en": ("falling",) if down else ("rising",)}
    return _shown(rng, language, names, " ".join(map(str, digits)), " ".join(map(str, sorted(digits, reverse=down))))


def ends(rng: Random) -> str:
    """Ask for the first or last term of a list, and answer."""
    language, terms = rng.choice(LANGUAGES), draw_terms(rng)
    end = rng.choice((0, -1))
    ask = {"zh": ("第一个", "最后一个"), "en": ("first", "last")}[language][end]
    question, answer = rng.choice((("问", "答"), ("Question", "Answer"), ("问/Question", "答/Answer")))
    return f"{question}: {ask}\n{listing(terms, language)}\n{answer}: {terms[end].say(language)}"


def sentence(rng: Random) -> str:
    """Say something about two or three terms, in one language or in both."""
    terms = rng.sample(TERMS, 3)
    forms = (
        ("我看见{a}和{b}。", "I see the {a} and the {b}."),
        ("他有{a}，没有{b}。", "He has the {a} but not the {b}."),
        ("{a}在{b}的旁边。", "The {a} is next to the {b}."),
        ("你喜欢{a}还是{b}？说说看。", "Do you like the {a} or the {b}? Say it."),
        ("我只要{a}，不要{b}。", "I want only the {a}, without the {b}."),
        ("从{a}往{b}走，再往{c}走。", "Go from the {a} to the {b}, then to the {c}."),
        ("先有{a}，再有{b}，最后有{c}。", "First comes the {a}, then the {b}, and last the {c}."),
        (
            "这里有多少东西？有{a}、{b}和{c}，一共三个。",
            "How many things are here? The {a}, the {b} and the {c}: three in all.",
        ),
    )
    said = [
        form.format(**{key: term.say(language) for key, term in zip("abc", terms)})
        for form, language in zip(rng.choice(forms), LANGUAGES)
    ]
    return "\n".join(rng.choice((said, said[::-1], said[:1], said[1:])))


MAKERS = {
    dictionary: 2,
    translation: 3,
    reversal: 3,
    copy: 1,
    membership: 1,
    members: 1,
    grouping: 2,
    selection: 7,
    kinds: 2,
    counting: 2,
    numbers: 1,
    ends: 1,
    sentence: 2,
}
"""Each maker and how often it is drawn, as a weight."""


def documents(seed: int) -> Iterator[str]:
    """Yield documents without end; the same seed gives the same stream."""
    rng = Random(seed)
    makers, weights = zip(*MAKERS.items())
    while True:
        yield rng.choices(makers, weights)[0](rng)
