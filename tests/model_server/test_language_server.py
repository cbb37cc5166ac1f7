"""The command `serve` with a language model, asked over OpenAI's HTTP interface."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import make_tiny_llama
import pytest
from environments import environment
from forked_replicas import forked

from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest
from kfp_distributed.storage.object_stores.embedded import embedded_object_store
from kfp_distributed.storage.opener import open_store

pytestmark = pytest.mark.takes(15)

MAIN = "from kfp_distributed.cli.main import main; main()"
FAILING_SEED, DISCONNECTED_SEED = 404, 405
SERVER = f"""
import os, resource
from kfp_distributed.components.model_server.chat_model import ChatModel
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for _ in range(1024):
    os.dup(0)  # The descriptors of connections are greater.
answer = ChatModel.answer
def answer_or_fail(model, request, *options):
    if request.seed == {DISCONNECTED_SEED}:
        raise ConnectionResetError("no such server")
    return [][1] if request.seed == {FAILING_SEED} else answer(model, request, *options)
ChatModel.answer = answer_or_fail
{MAIN}
"""
CHAT, TEXT = [{"role": "user", "content": "What is one plus two?"}], "It is three"
TOOLS = [{"type": "function", "function": {"name": "add"}}]

MODELS = """
import json, sys, torch
from pathlib import Path
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from kfp_distributed.trainers.language_training.base_folder import content_hash
folder, chat, text, tools = Path(sys.argv[1]), *map(json.loads, sys.argv[2:])
base = folder / "base"
configuration = json.loads((base / "config.json").read_text())
yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 50_000}
positions = {"max_position_embeddings": 50_000, "rope_parameters": yarn}  # 100,000 with the factor.
(base / "config.json").write_text(json.dumps(configuration | positions))
tokenizer = AutoTokenizer.from_pretrained(base)
fails = "{% if messages[0].content == 'fail' %}{{ raise_exception('no such system') }}{% endif %}"
shows_tools = "{% if tools and messages[0].content != 'leave out' %}{{ tools | tojson }}{% endif %}"
tokenizer.chat_template = fails + shows_tools + tokenizer.chat_template
torch.manual_seed(1)
options = {"target_modules": "all-linear", "init_lora_weights": False, "lora_alpha": 64, "task_type": "CAUSAL_LM"}
model = AutoModelForCausalLM.from_pretrained(base)
model.lm_head.weight.data[tokenizer.eos_token_id] = 0  # It ends no greedy answer: another token has a positive score.
model.save_pretrained(base)
model = get_peft_model(model, LoraConfig(**options))
for name in ("adapter", "both"):
    model.save_pretrained(folder / name)
    tokenizer.save_pretrained(folder / name)
    described = {"kind": name, "base_model": f"file://{base}", "sha256": content_hash(base)}
    (folder / name / "base_model.json").write_text(json.dumps(described))
merged = model.merge_and_unload().eval()
merged.save_pretrained(folder / "both" / "merged")
tokenizer.save_pretrained(folder / "both" / "merged")

def answer(tokens):
    tokens = torch.tensor([tokens])
    output = merged.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=40, do_sample=False)
    return [tokenizer.decode(output[0, tokens.shape[1]:], skip_special_tokens=True), tokens.shape[1]]

prompts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tools=given)["input_ids"]
           for given in (None, tools)]
print(json.dumps([answer(prompt) for prompt in (*prompts, tokenizer(text)["input_ids"])]))
"""


@pytest.fixture(scope="module")
def variables(tmp_path_factory):
    """The environment of a Python with the library and without kfp."""
    site = tmp_path_factory.mktemp("site")
    (site / "kfp_distributed").symlink_to(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": str(site), "_KFP_RUNTIME": "true", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def models(tmp_path_factory, variables):
    """The folder of the models, and what the tuned one answers to CHAT, to CHAT with TOOLS, and to TEXT."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "texts.csv").write_text("message,team\nWhat is one plus two? It is three.,ü\n")
    program = [make_tiny_llama.__file__, folder / "texts.csv", folder / "base"]
    subprocess.run(forked(environment("torch2"), *program), check=True)
    words = folder, *map(json.dumps, (CHAT, TEXT, TOOLS))
    program = forked(environment("torch2"), "-c", MODELS, *words)
    ran = subprocess.run(program, check=False, capture_output=True, text=True, env=variables)
    assert ran.returncode == 0, ran.stderr
    return folder, json.loads(ran.stdout.splitlines()[-1])


@contextmanager
def serving(model, variables):
    """Yield the address of the command with version 1 of a model, without the path, and its process."""
    command = forked(environment("torch2"), "-c", SERVER, "serve", model, "--port", "0")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=variables
    ) as process:
        try:
            output = []
            for line in iter(process.stdout.readline, ""):
                output.append(line)
                if found := re.match(r"serving \w+ 1 at (http://\S+)/openai/v1, until", line):
                    break
            else:
                pytest.fail("".join(output))
            yield found[1], process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server(models, variables):
    with serving(models[0] / "adapter", variables) as (url, process):
        yield url
        assert process.poll() is None


def post(url, path, method="POST", **content):
    """Return the status and the content of an answer, of a streamed one the list of its objects."""
    body = json.dumps({"model": "adapter"} | content).encode()
    try:
        with urlopen(Request(f"{url}{path}", body, method=method), timeout=120) as response:
            text = response.read().decode()
            if response.headers["Content-Type"] == "application/json":
                return response.status, json.loads(text)
            *events, end = text.removesuffix("\n\n").split("\n\n")
            assert end == "data: [DONE]"
            return response.status, [json.loads(event.removeprefix("data: ")) for event in events]
    except HTTPError as error:
        return error.code, json.loads(error.read())


def test_the_greedy_answer_of_an_adapter_is_that_of_transformers(server, models):
    greedy = {"temperature": 0, "max_tokens": 40}
    in_chat, with_tools, completed = models[1]
    for path in ("/v1", "/openai/v1"):
        status, content = post(server, f"{path}/chat/completions", messages=CHAT, **greedy)
        (choice,) = content.pop("choices")
        assert (status, choice["message"]) == (200, {"role": "assistant", "content": in_chat[0]})
        assert (choice["finish_reason"], content["object"]) == ("length", "chat.completion")
        assert content["usage"] == {
            "prompt_tokens": in_chat[1],
            "completion_tokens": 40,
            "total_tokens": in_chat[1] + 40,
        }
        status, content = post(server, f"{path}/completions", prompt=TEXT, **greedy)
        assert (status, content["choices"][0]["text"], content["object"]) == (200, completed[0], "text_completion")
        (model,) = json.loads(urlopen(f"{server}{path}/models", timeout=120).read())["data"]
        assert (model["id"], model["object"]) == ("adapter", "model")
        assert json.loads(urlopen(f"{server}{path}/models/adapter", timeout=120).read()) == model
    parts = [{"role": "user", "content": [{"type": "text", "text": CHAT[0]["content"]}]}]
    content = post(server, "/v1/chat/completions", messages=parts, tools=TOOLS, **greedy)[1]
    assert [content["choices"][0]["message"]["content"], content["usage"]["prompt_tokens"]] == with_tools
    assert with_tools[0] != in_chat[0] != completed[0]


def test_a_streamed_answer_is_the_same_text(server, models):
    options = {"messages": CHAT, "max_completion_tokens": 200, "seed": 3, "temperature": 1.5, "top_p": 0.9}
    whole = post(server, "/v1/chat/completions", **options)[1]
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    first, *parts, last, usage = post(server, "/v1/chat/completions", **options, **streamed)[1]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    texts = [part["choices"][0]["delta"]["content"] for part in parts]
    assert "".join(texts) == whole["choices"][0]["message"]["content"]
    assert len(texts) > 10
    assert last["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert (usage["choices"], usage["usage"], first["usage"]) == ([], whole["usage"], None)
    assert {part["object"] for part in (first, *parts, last, usage)} == {"chat.completion.chunk"}
    assert post(server, "/v1/chat/completions", **options | {"seed": 4})[1]["choices"] != whole["choices"]
    *parts, last = post(server, "/v1/completions", prompt=TEXT, temperature=0, max_tokens=40, stream=True)[1]
    assert "".join(part["choices"][0]["text"] for part in parts) == models[1][2][0]
    assert (last["choices"][0]["finish_reason"], "usage" in last) == ("length", False)


def test_an_answer_ends_before_a_text_of_stop_and_at_the_token_that_ends_a_turn(server, models):
    text = models[1][0][0]
    options = {"messages": CHAT, "temperature": 0, "max_tokens": 40}
    expected = text[: text.index(text[12:15])]
    content = post(server, "/v1/chat/completions", **options, stop=["<never>", text[12:15]])[1]
    assert content["choices"][0] | {"finish_reason": "stop"} == content["choices"][0]
    assert content["choices"][0]["message"]["content"] == expected
    assert content["usage"]["completion_tokens"] < 40
    parts = post(server, "/v1/chat/completions", **options, stop=text[12:15], stream=True)[1]
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts) == expected
    for seed in range(50):
        content = post(server, "/v1/chat/completions", messages=CHAT, max_tokens=100, temperature=2, seed=seed)[1]
        if content["choices"][0]["finish_reason"] == "stop":
            break
    assert content["usage"]["completion_tokens"] < 100
    assert "<|im_end|>" not in content["choices"][0]["message"]["content"]


def test_wrong_requests_have_the_error_of_openai(server):
    def error(path, expected, **content):
        status, answer = post(server, path, **content)
        assert (status, set(answer["error"])) == (expected, {"message", "type", "param", "code"})
        return answer["error"]

    chat = "/openai/v1/chat/completions"
    assert error(chat, 404, model="other", messages=CHAT) == {
        "message": "model is 'other': this server has the model 'adapter'",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    assert error("/openai/v1/models/other", 404, method="GET")["code"] == "model_not_found"
    assert error(chat, 400, messages=CHAT, logit_bias={"1": 2})["param"] == "logit_bias"
    left_out = [{"role": "user", "content": "leave out"}]
    assert error(chat, 400, messages=left_out, tools=TOOLS)["message"].endswith("its chat template leaves tools out")
    long = error("/v1/completions", 400, prompt="one " * 100_000)
    assert (long["param"], long["code"]) == ("prompt", "context_length_exceeded")
    assert "it must have at least 1 and fewer than 100000" in long["message"]
    longer = error("/v1/completions", 400, prompt="one " * 10_000_000)
    assert longer["code"] == "context_length_exceeded"
    assert longer["message"].startswith("the prompt has 40000000 characters, at most ")
    assert error(chat, 400, messages=[{"role": "user", "content": "x" * 40_000_000}])["code"] == longer["code"]
    tools = [{"type": "function", "function": {"name": "x", "description": "x" * 40_000_000}}]
    assert error(chat, 400, messages=CHAT, tools=tools)["code"] == longer["code"]
    assert "has half of a character" in error("/v1/completions", 400, prompt="1 \ud83d")["message"]
    assert "at least 1" in error("/v1/completions", 400, prompt="")["message"]
    assert error(chat, 400, messages=[{"role": "system", "content": "fail"}])["message"] == (
        "the messages cannot be written as a prompt of the model: no such system"
    )
    wrong_method = error(chat, 501, method="PUT")
    assert (wrong_method["message"], wrong_method["type"]) == ("Unsupported method ('PUT')", "invalid_request_error")
    assert error("/v1/predict", 404)["message"].startswith("POST /v1/predict is not served: this server has GET /v1/m")


@pytest.mark.parametrize(
    ("seed", "reason"), [(FAILING_SEED, "list index out of range"), (DISCONNECTED_SEED, "no such server")]
)
def test_any_failure_of_a_model_is_answered(server, seed, reason):
    error = {"message": f"the model failed: {reason}", "type": "server_error", "param": None, "code": None}
    options = {"messages": CHAT, "seed": seed}
    assert post(server, "/v1/chat/completions", **options) == (500, {"error": error})
    body = json.dumps({"model": "adapter", "stream": True} | options).encode()
    with urlopen(Request(f"{server}/v1/chat/completions", body), timeout=120) as response:
        last = response.read().decode().split("\n\n")[-2]
    assert json.loads(last.removeprefix("data: ")) == {"error": error}


def request_without_end(url, **content):
    """Send a request for an answer of 100,000 tokens, which takes minutes, and return the connection."""
    connection = HTTPConnection(url.removeprefix("http://"), timeout=120)
    body = {"model": "adapter", "messages": CHAT, "temperature": 0, **content}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    return connection


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_leaves_ends_its_generation_for_which_others_wait(server, streams):
    leaving = request_without_end(server, stream=streams)
    if streams:
        leaving = leaving.getresponse()
        assert '"content": ""' in leaving.readline().decode()
        assert leaving.readline() + leaving.readline()  # It generates.
    else:
        time.sleep(0.5)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(post, server, "/v1/completions", prompt=TEXT, max_tokens=1)
        time.sleep(0.5)
        assert not (streams and waiting.done())
        leaving.close()
        assert waiting.result(60)[0] == 200


def test_the_merged_model_of_an_object_store_is_served_and_ends_while_it_generates(
    models, variables, tmp_path, monkeypatch
):
    folder = models[0] / "both"
    text = models[1][0][0]
    stop = text[12:24]
    # Each of these values fails unless the server overrides or supports it.
    configured = {"penalty_alpha": 0.6, "top_k": 4, "stop_strings": stop, "return_dict_in_generate": True}
    file = folder / "merged" / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | configured))
    (folder / MODEL_MANIFEST).write_text(ModelManifest("hugging_face", describe_folder(folder)).to_json())
    with ExitStack() as stack:
        keys = stack.enter_context(embedded_object_store(tmp_path)).environment()
        for name, value in keys.items():
            monkeypatch.setenv(name, value)
        store = open_store("s3://served/both/1")
        store.make_bucket()
        store.upload_folder(folder)
        url, process = stack.enter_context(serving(store.uri, variables | keys))
        options = {"model": "both", "messages": CHAT, "temperature": 0, "max_tokens": 40}
        (choice,) = post(url, "/v1/chat/completions", **options)[1]["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (text[: text.index(stop)], "stop")
        other = [{"role": "user", "content": "Hello"}]  # Its answer lacks the text of stop_strings.
        with_answer = request_without_end(url, model="both", messages=other, stream=True).getresponse()
        with_answer.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        assert process.stdout.read() == ""


def test_an_adapter_without_its_model_is_refused(models, variables, tmp_path):
    def error():
        program = forked(environment("torch2"), "-c", MAIN, "serve", tmp_path, "--port", "0")
        done = subprocess.run(program, capture_output=True, text=True, env=variables)
        assert done.returncode == 1
        return done.stderr

    for file in (models[0] / "adapter").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    described = json.loads((tmp_path / "base_model.json").read_text())
    (tmp_path / "base_model.json").write_text(json.dumps(described | {"sha256": "0"}))
    assert "has not the files with which the adapter was trained: serve a model that was trained with" in error()
    (tmp_path / "base_model.json").write_text(json.dumps(described | {"base_model": "/nowhere"}))
    assert "the model /nowhere of the adapter cannot be fetched: base_model is '/nowhere', which has no" in error()
    (tmp_path / "base_model.json").unlink()
    assert "has an adapter, and no base_model.json that names its model" in error()


def test_what_is_missing_for_a_language_model_is_named(models):
    """This Python lacks PyTorch."""
    program = forked(sys.executable, "-c", MAIN, "serve", models[0] / "adapter", "--port", "0")
    done = subprocess.run(program, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(r"adapter is a language model, .*'torch'.*pip install 'kfp-distributed\[language-m", done.stderr)
