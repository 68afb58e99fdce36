"""The small bilingual world that the tiny model knows: 64 things in 8 categories, each with two names."""

from __future__ import annotations

from typing import NamedTuple

LANGUAGES = ("zh", "en")


class Term(NamedTuple):
    """One thing and its name in each language."""

    zh: str
    en: str

    def say(self, language: str) -> str:
        """Name the thing in `language` ("zh" or "en")."""
        return getattr(self, language)


def _terms(text: str) -> tuple[Term, ...]:
    words = text.split()
    return tuple(map(Term, words[::2], words[1::2]))


CATEGORIES: dict[Term, tuple[Term, ...]] = {
    Term("动物", "animals"): _terms("猫 cat 狗 dog 马 horse 牛 cow 羊 sheep 鸟 bird 鱼 fish 老虎 tiger"),
    Term("水果", "fruits"): _terms(
        "苹果 apple 梨 pear 桃子 peach 葡萄 grape 柠檬 lemon 芒果 mango 香蕉 banana 李子 plum"
    ),
    Term("颜色", "colours"): _terms(
        "红色 red 蓝色 blue 绿色 green 黄色 yellow 黑色 black 白色 white 灰色 grey 紫色 purple"
    ),
    Term("衣物", "clothes"): _terms("帽子 hat 衬衫 shirt 外套 coat 鞋 shoe 袜子 sock 手套 glove 围巾 scarf 裙子 skirt"),
    Term("工具", "tools"): _terms("锤子 hammer 锯子 saw 斧头 axe 刀 knife 绳子 rope 钉子 nail 铲子 spade 刷子 brush"),
    Term("职业", "jobs"): _terms(
        "医生 doctor 老师 teacher 厨师 cook 农民 farmer 司机 driver 护士 nurse 画家 painter 歌手 singer"
    ),
    Term("车辆", "vehicles"): _terms(
        "汽车 car 公交车 bus 火车 train 船 boat 飞机 plane 卡车 truck 自行车 bike 拖拉机 tractor"
    ),
    Term("地方", "places"): _terms("山 hill 河 river 海 sea 岛 island 学校 school 公园 park 农场 farm 城市 city"),
}

TERMS: tuple[Term, ...] = tuple(term for members in CATEGORIES.values() for term in members)
CATEGORY_OF: dict[Term, Term] = {term: category for category, members in CATEGORIES.items() for term in members}


def listing(terms: list[Term] | tuple[Term, ...], language: str) -> str:
    """Name the terms in `language`, in order, separated by spaces."""
    return " ".join(term.say(language) for term in terms)
