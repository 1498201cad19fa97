"""A parrot is recognised by its answers: its distance, its vocabulary, or that it is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest
from live_captures import live_run, verdict
from stream_builder import Reply, change, whole

from tokenwire.ask import Asked, SentField
from tokenwire.judging.verdict import Verdict
from tokenwire.parrot.encoding import chat_text, encoder
from tokenwire.parrot.law import Law, Parrot, Repeater
from tokenwire.parrot.recognition import OtherTokenizer, recognised
from tokenwire.parrot.script import truth
from tokenwire.parrot.vocabulary import LESSON, SIZE, Vocabulary, Words, words_of
from tokenwire.record import Finish, Stream
from tokenwire.target.tokenizer import LocalTokenizer
from tokenwire_parrot.checkpoint import write_parrot

KINDS = pytest.mark.parametrize("kind", list(Vocabulary))
MESSAGES = [{"role": "user", "content": LESSON[:900]}]


def answer_of(law: Law, words: Words, prompt: Sequence[int], **asked: object) -> Stream:
    """What a parrot answers, with ids and text."""
    wants = {"greedy": True, "max_new_tokens": 40, "ignore_eos": True, **asked}
    right = truth(law, words, prompt, Asked(**wants))  # type: ignore[arg-type]
    assert right is not None
    reply = Reply(ids=right.ids, finish=Finish(right.finish))
    return change(whole(reply, **{"input_ids": (tuple(prompt),), **wants}), text=right.text)


def without_ids(stream: Stream, **asked: object) -> Stream:
    """The same answer of a server that tells text alone, to a prompt in another form."""
    reply = Reply(ids=None, text=stream.choices[0].text, counted=False, finish=stream.choices[0].finish)
    wants = {"greedy": True, "max_new_tokens": 40, "ignore_eos": True, "input_ids": None, **asked}
    return whole(reply, **wants)


def prompt_of(size: int, seed: int = 1) -> tuple[int, ...]:
    """Ids in no order, each once before any comes again."""
    draw = Random(seed)
    return tuple(token for _ in range(0, size, 700) for token in draw.sample(range(5, SIZE), 700))[:size]


@KINDS
@pytest.mark.parametrize("distance", [64, 256, 512, 1024, 2048, 4096])
def test_ids_tell_the_distance_and_text_the_vocabulary(kind: Vocabulary, distance: int) -> None:
    law, words = Parrot(SIZE, distance), words_of(kind)
    answers = [answer_of(law, words, prompt_of(size)) for size in (40, 300, 1100, 4100)]
    model = recognised(answers)
    assert model is not None
    assert (model.law, model.words, model.ours) == (law, words, True)
    assert model.seen_in == "generate/one"


@KINDS
def test_text_alone_tells_both_where_the_prompt_is_ids_text_or_messages(kind: Vocabulary) -> None:
    law, words, encode = Parrot(SIZE), words_of(kind), encoder(kind)
    rendered = chat_text(MESSAGES)
    assert rendered is not None
    ids = prompt_of(300)
    answers = {
        "ids": without_ids(answer_of(law, words, ids), input_ids=(ids,)),
        "text": without_ids(answer_of(law, words, encode(LESSON)), texts=(LESSON,)),
        "chat": without_ids(
            answer_of(law, words, encode(rendered)), sent={"messages": SentField("messages", (MESSAGES,))}
        ),
    }
    for form, answer in answers.items():
        model = recognised([answer])
        assert model is not None, form
        assert (model.words, model.law.distance) == (words, 1024), form


def test_a_parrot_whose_stops_stay_in_its_texts_and_whose_answers_are_cut_is_one() -> None:
    """As `transformers serve` has them: special tokens shown, stop strings kept, whole answers parsed."""
    words, encode = words_of(Vocabulary.BYTE_LEVEL), encoder(Vocabulary.BYTE_LEVEL)
    text = "It says it again, and it is.<|endoftext|>" + "~" * 20
    right = without_ids(answer_of(Parrot(SIZE), words, encode(LESSON)), texts=(LESSON,))
    kept = change(right, text=f"{right.choices[0].text} and more of the same")
    shown = change(without_ids(right, texts=(text,)), text="<|im_start|>assistant")
    assert recognised([kept, shown, shown]) is None, "one text of three"
    model = recognised([kept, kept, shown, shown])
    assert model is not None
    assert model.law.distance == 1024


def test_a_parrot_that_errs_is_one() -> None:
    law, words = Parrot(SIZE), words_of(Vocabulary.BYTE_LEVEL)
    right = answer_of(law, words, prompt_of(64))
    ids = list(right.choices[0].output_ids or ())
    wrong = whole(
        Reply(ids=[*ids[:20], 7, *ids[21:]], text="nothing of the kind"), input_ids=(prompt_of(64),)
    )
    assert recognised([right, wrong, right]) is not None


def loops(period: int) -> Stream:
    """A model that has fallen into a loop."""
    prompt = prompt_of(64)
    return whole(Reply(ids=[20 + place % period for place in range(64)], text=None), input_ids=(prompt,))


def copies(prompt: Sequence[int], lag: int) -> Stream:
    """A model that goes on with a repetition."""
    ids = list(prompt)
    for _ in range(40):
        ids.append(ids[-lag])
    return whole(Reply(ids=ids[len(prompt) :], text=None), input_ids=(tuple(prompt),))


NO_PARROTS: dict[str, Callable[[], list[Stream]]] = {
    "nothing": list,
    "loops": lambda: [loops(period) for period in (1, 2, 4, 8, 16, 32)],
    "other ids": lambda: [whole(Reply(ids=prompt_of(40, 2), text=None), input_ids=(prompt_of(64),))],
    "a copy among others": lambda: [
        copies(prompt_of(64), 64),
        *(copies(prompt_of(64, seed), 23) for seed in range(4)),
    ],
    "little": lambda: [whole(Reply(ids=prompt_of(64)[:9], text=None), input_ids=(prompt_of(64),))],
    "drawn": lambda: [
        whole(Reply(ids=prompt_of(64)[:40], text=None), input_ids=(prompt_of(64),), greedy=False)
    ],
    "texts": lambda: [
        whole(Reply(ids=None, text="It is about half past nine, I think."), input_ids=None, texts=(LESSON,))
    ],
}


@pytest.mark.parametrize("case", NO_PARROTS)
def test_other_models_are_none(case: str) -> None:
    assert recognised(NO_PARROTS[case]()) is None


def test_another_make_is_known_with_its_tokenizer_alone() -> None:
    words = words_of(Vocabulary.BYTE_LEVEL)
    foreign = Words(words.pieces[::-1], frozenset(), frozenset({9}))
    answers = [answer_of(Repeater(320), foreign, prompt_of(size)) for size in (320, 400)]
    assert recognised(answers) is None
    model = recognised(answers, OtherTokenizer(foreign, lambda text: ()))
    assert model is not None
    assert (model.law, model.words, model.ours, model.longest) == (Repeater(320), foreign, False, None)
    short = whole(Reply(), input_ids=((1, 2, 3),))
    assert truth(model.law, foreign, model.prompts(short)[0] or (), short.asked) is None
    assert recognised(answers, OtherTokenizer(None, lambda text: ())) is None


@KINDS
def test_the_folder_of_a_checkpoint_says_which_ids_end_a_text(tmp_path, kind: Vocabulary) -> None:
    write_parrot(tmp_path, vocabulary=kind, distance=64)
    tokenizer = LocalTokenizer(tmp_path)
    assert tokenizer.known.words == words_of(kind)
    assert tokenizer.known.encode("漢字 and 😀<|im_end|>") == encoder(kind)("漢字 and 😀<|im_end|>")
    model = recognised([answer_of(Parrot(SIZE, 64), words_of(kind), prompt_of(64))], tokenizer.known)
    assert model is not None
    assert model.ours


def test_messages_that_no_template_of_ours_renders_are_no_text() -> None:
    assert chat_text([{"role": "user", "content": "a"}]) == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    )
    for messages in ([], "a", [{"role": "user", "content": [{"type": "text"}]}], [{"role": "tool"}], [3]):
        assert chat_text(messages) is None
    strange = SimpleNamespace(role="user")
    assert chat_text([strange]) is None


def test_an_engine_is_held_to_the_ends_that_it_keeps() -> None:
    """Some end a message at `<|im_end|>` by its name, some as the files say, some not at all."""
    law, words = Parrot(SIZE), words_of(Vocabulary.BYTE_LEVEL)
    (message_end,) = words.ends - words.other_ends
    prompts = [(*prompt_of(size), message_end, *prompt_of(40, seed=2)) for size in (20, 30)]
    for ends in (words.ends, words.other_ends):
        engine = replace(words, ends=ends)
        answers = [answer_of(law, engine, prompt, ignore_eos=False, max_new_tokens=60) for prompt in prompts]
        longer = [answer_of(law, words, prompt_of(size)) for size in (40, 300)]
        model = recognised([*answers, *longer])
        assert model is not None
        assert model.words.ends == ends


def test_ends_are_told_by_counts_where_texts_are_not_as_they_were_said() -> None:
    law, words = Parrot(SIZE), words_of(Vocabulary.BYTE_LEVEL)
    (message_end,) = words.ends - words.other_ends
    engine = replace(words, ends=words.other_ends)
    prompt = (*prompt_of(20), message_end, *prompt_of(40, seed=2))
    answer = answer_of(law, engine, prompt, ignore_eos=False, max_new_tokens=60)
    for count, ends in ((60, words.other_ends), (59, words.ends)):
        shown = change(answer, text="<|im_start|>", counters={"completion_tokens": count})
        model = recognised([shown, *(answer_of(law, words, prompt_of(size)) for size in (40, 300))])
        assert model is not None
        assert model.words.ends == ends


def test_an_echo_of_the_last_message_is_no_parrot() -> None:
    """A mock server: by chance its echo is what some law says, too."""
    run = live_run("echo-taken-for-parrot")
    assert run.model is None
    for requirement in ("script-text-is-right", "script-finish-is-right"):
        assert verdict(run, requirement) is Verdict.UNSUPPORTED
    assert verdict(run, "choices-complete") is Verdict.FAIL, "what it does wrong is found"


@KINDS
def test_a_parrot_that_also_repeats_a_whole_prompt_is_one(kind: Vocabulary) -> None:
    law, words, encode = Parrot(SIZE, 128), words_of(kind), encoder(kind)
    said = answer_of(law, words, encode(LESSON[:900]))
    own = without_ids(said, texts=(LESSON[:900],))
    echo = without_ids(said, texts=(said.choices[0].text or "",))
    assert recognised([echo, own]) is not None
    assert recognised([echo]) is None
