"""What a client that does as it should gets of a server."""

from __future__ import annotations

import json

import intercode
from serve.served import Served, heard, say

TASKS = intercode.load_dataset("bash")


def test_an_episode(server: Served) -> None:
    task = TASKS[1]
    assert server.urls == {name: f"{server.url}/{name}" for name in ("bash", "sql")}
    with server.client() as client:
        begun = say(client, "reset", index=1, episode_id="mine", seed=3)
        assert begun["observation"]["text"] == task.query
        assert (begun["reward"], begun["done"]) == (None, False)
        seen = say(client, "step", action="printf '\\377'")
        assert intercode.exact(seen["observation"]["text"]) == "\udcff"
        assert (seen["reward"], seen["done"]) == (None, False)
        assert seen["observation"]["info"]["ok"] and not seen["observation"]["truncated"]
        say(client, "step", action=task.gold[0])
        state = say(client, "state")
        assert (state["episode_id"], state["step_count"]) == ("mine", 2)
        assert state["task_id"] == task.task_id
        last = say(client, "step", action="submit", metadata={})
        assert (last["reward"], last["done"]) == (1.0, True)
        assert last["observation"]["info"]["success"] and last["observation"]["info"]["parts"]
        again = say(client, "reset", task_id=TASKS[0].task_id)
        assert again["observation"]["text"] == TASKS[0].query
    assert server.tells("episode", episode="mine", task=task.task_id, reward=1.0)


def test_the_same_tasks_as_in_process(server: Served) -> None:
    env = intercode.make("sql")
    with server.client("/sql/ws") as client:
        first = say(client, "reset", seed=7)["observation"]["info"]
        assert first == {**env.reset(seed=7)[1], "tags": first["tags"]}
        second = say(client, "reset")["observation"]["info"]["task_id"]
        assert second == env.reset()[1]["task_id"]
    env.close()


def test_truncation(server: Served) -> None:
    with server.client() as client:
        say(client, "reset", index=0)
        turns = [say(client, "step", action="true") for _ in range(10)]
        assert [turn["done"] for turn in turns] == [False] * 9 + [True]
        assert turns[-1]["observation"]["truncated"] and turns[-1]["reward"] is not None


def test_mistakes_leave_the_session_as_it_was(server: Served) -> None:
    def mistake(client, text: str) -> tuple[str, str]:  # type: ignore[no-untyped-def]
        client.send(text)
        told = heard(client)
        assert told["type"] == "error" and told["data"]["message"]
        return told["data"]["code"], told["data"]["error"]

    def of(kind: str, **data: object) -> str:
        return json.dumps({"type": kind, "data": data})

    with server.client() as client:
        assert mistake(client, of("step", action="ls")) == (
            "EXECUTION_ERROR",
            "EnvironmentStateError",
        )
        say(client, "reset", index=0)
        assert mistake(client, "{") == ("INVALID_JSON", "UsageError")
        deep = '{"type": "reset", "data": ' + "[" * 100_000
        assert mistake(client, deep) == ("INVALID_JSON", "UsageError")
        assert mistake(client, "[]") == ("VALIDATION_ERROR", "UsageError")
        assert mistake(client, of("mcp")) == ("UNKNOWN_TYPE", "UsageError")
        assert mistake(client, of("step", action=7)) == ("VALIDATION_ERROR", "ActionError")
        for chosen in ("image", "network", "reward", "limits", "data", "options", "timeout"):
            assert mistake(client, of("reset", **{chosen: "x"}))[0] == "VALIDATION_ERROR"
            assert mistake(client, of("step", action="ls", **{chosen: "x"}))[1] == "ActionError"
        assert say(client, "step", action="echo still")["observation"]["text"] == "still\n"
        assert mistake(client, of("reset", seed=-1)) == ("VALIDATION_ERROR", "UsageError")
        unknown = mistake(client, of("reset", task_id="no such"))
        assert unknown == ("EXECUTION_ERROR", "TaskNotFoundError")
        assert mistake(client, of("reset", split="no such"))[1] == "TaskError"
        assert mistake(client, of("reset", task_id="a", index=1))[1] == "UsageError"
        say(client, "reset", index=0)
        say(client, "step", action="submit")
        assert mistake(client, of("step", action="ls"))[1] == "EnvironmentStateError"


def test_requests(server: Served) -> None:
    assert server.get("/health") == (200, {"status": "healthy"})
    assert server.get("/list_environments") == (200, ["bash", "sql"])
    _, told = server.get("/sql/metadata")
    assert (told["name"], told["intercode"]["language"]) == ("sql", "sql")
    assert server.get("/metadata")[1]["intercode"]["max_turns"] == 10
    assert {*server.get("/schema")[1]} == {"action", "observation", "state"}
    assert server.get("/bash/splits") == (200, [{"name": "all", "type": "validation"}])
    assert server.post("/bash/num_tasks", split="all") == (200, {"num_tasks": len(TASKS)})
    _, found = server.post("/bash/task_range", split="all", start=1, stop=3)
    assert [task["id"] for task in found["tasks"]] == [task.task_id for task in TASKS[1:3]]
    _, found = server.post("/bash/task", split="all", index=2)
    assert found["task"]["query"] == TASKS[2].query
    _, found = server.post("/bash/tasks", split="all")
    assert len(found["tasks"]) == len(TASKS)
    told = {"id", "index", "task_id", "query", "tags"}
    assert all({*task} == told for task in found["tasks"])


def test_requests_that_cannot_be(server: Served) -> None:
    assert server.get("/")[0] == 404
    assert server.get("/no-such/splits")[0] == 404
    assert server.get("/no-such/ws")[0] == 404
    assert server.get("/bash/tasks")[0] == 405
    assert server.post("/metadata")[0] == 405
    assert server.get("/ws")[0] == 426
    assert server.post("/ws")[0] == 404
    assert server.post("/bash/task", split="all", index=len(TASKS))[0] == 400
    assert server.post("/bash/task", split="train", index=0)[0] == 400
    assert server.post("/bash/task", split=3)[0] == 400
    assert server.get("/bash/task", b"{")[0] == 400
    assert server.get("/bash/task", b" " * 100_000)[0] == 413


def test_what_is_counted(server: Served) -> None:
    before = server.metric("step_seconds_count"), server.metric("opened_total")
    with server.client() as client:
        say(client, "reset", index=0)
        say(client, "step", action="true")
        assert server.metric("sessions") >= 1
    after = server.metric("step_seconds_count"), server.metric("opened_total")
    assert after == (before[0] + 1, before[1] + 1)
