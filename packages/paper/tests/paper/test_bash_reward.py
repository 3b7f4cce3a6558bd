"""The 2023 reward: against scikit-learn, and against the recorded ``info`` of real runs."""

import json
import math
import warnings

import pytest
from hypothesis import given, settings, strategies as st

from intercode_paper.bash_reward import ContainerOutcome, cosine, early_score, score, similarity

from .upstream import BASH_RESULTS, needs_upstream

words = st.lists(
    st.sampled_from(["a", "ab", "AB", "x1", "été", "10", "5", "/a/b.txt", "_", "__", "İi", "-"])
)
texts = words.map(" ".join) | st.text()


@settings(max_examples=400, deadline=None)
@given(texts, texts)
def test_cosine_is_scikit_learns(one, two):
    text = pytest.importorskip("sklearn.feature_extraction.text")
    pairwise = pytest.importorskip("sklearn.metrics.pairwise")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            matrix = text.TfidfVectorizer().fit_transform([one, two])
        except ValueError:
            expected = None
        else:
            expected = float(pairwise.cosine_similarity(matrix)[0][1])
    ours = cosine(one, two)
    if expected is None or ours is None:
        assert ours is expected
    else:
        assert math.isclose(ours, expected, abs_tol=1e-12)


def test_texts_without_words_are_compared_whole():
    assert similarity("5\n", "5\n") == 1.0
    assert similarity("5\n", "6\n") == 0.0
    assert similarity("", "x") == 0.0
    assert similarity("aa", "") == 0.0


def side(*pairs, output="same", sums=None):
    return ContainerOutcome(pairs, output, lambda path: (sums or {}).get(path, "none"))


def test_full_reward_is_exactly_one():
    assert score(side(), side()).value == 1.0


@pytest.mark.parametrize(("differences", "part"), [(0, 0.33), (1, 0.05), (2, 0.0), (9, 0.0)])
def test_file_diff(differences, part):
    extra = [(f"f{n}.txt", "D") for n in range(differences)]
    result = score(side(*extra), side())
    assert result.parts["file_diff"] == part
    assert result.detail["diff_extra"] == extra
    assert score(side(), side(*extra)).detail["diff_miss"] == extra


def test_only_new_paths_are_compared_and_dotless_ones_always_agree():
    pairs = [("a.txt", "??"), ("dir/", "??"), ("old.txt", "M")]
    one = side(*pairs, sums={"a.txt": "1", "old.txt": "1", "dir/": "1"})
    two = side(*pairs, sums={"a.txt": "2", "old.txt": "2", "dir/": "2"})
    result = score(one, two)
    assert result.parts["file_changes"] == round(0.33 / 2, 2)
    assert result.detail["diff_same"] == {
        "files": [("a.txt", "??"), ("dir/", "??")],
        "correct": 1,
        "total": 2,
    }


def test_the_sum_has_the_recorded_digits():
    assert score(side(output="aa bb"), side(output="cc")).value == 0.67
    parts = score(side(output="aa " * 40 + "bb cc"), side(output="bb")).parts
    assert set(parts) == {"file_diff", "file_changes", "answer_similarity"}


def test_the_early_version_saw_only_the_end_of_gold():
    result = score(side(output="0\n"), side(output="gzip: unexpected end of file\n0\n"))
    assert result.value < 1.0
    assert early_score(result).value == 1.0
    assert early_score(result).detail["eval_obs"] == "0\n"


def test_the_early_version_saw_all_of_gold_beside_an_empty_output():
    assert early_score(score(side(output=""), side(output="aa"))).detail["eval_obs"] == "aa"


@needs_upstream
def test_recorded_infos():
    """All of the arithmetic, from recorded diffs and outputs to the recorded reward."""
    checked = 0
    for path in sorted(BASH_RESULTS.glob("*/*multiturn*.json")):
        for key, episode in json.loads(path.read_bytes()).items():
            info = episode["info"]
            missing = [tuple(pair) for pair in info["diff_miss"]]
            extra = [tuple(pair) for pair in info["diff_extra"]]
            same = info.get("diff_same", {"files": [], "correct": 0, "total": 0})
            common = [tuple(pair) for pair in same["files"]]
            ours = {path: str(row >= same["correct"]) for row, (path, _) in enumerate(common)}
            if any("." not in path for path, _ in common):
                ours = {}
            agent = ContainerOutcome(
                [*common, *extra], info["agent_obs"], lambda p, o=ours: o.get(p, "")
            )
            gold = ContainerOutcome(
                [*common, *missing], info["eval_obs"], lambda p, o=ours: str(False) * (p in o)
            )
            result = score(agent, gold)
            where = f"{path.name} {key}"
            assert result.parts == info["reward"], where
            assert result.value == episode["turn_history"]["rewards"][-1], where
            assert result.detail["answer_similarity"] == pytest.approx(
                info["answer_similarity"], abs=1e-12
            ), where
            checked += 1
    assert checked
