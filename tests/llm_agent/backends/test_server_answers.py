"""What servers answer, in their own words: prompts that do not fit, contents in parts, fields that are refused."""

import json

import pytest

from ragen.config.schema import OpenAI
from ragen.llm_agent.backends import Request, Sampling, openai
from support.chat_server import chat_server, completion, raw

WINDOW = "This model's maximum context length is 800 tokens."
OUT_OF_CONTEXT = {
    "OpenAI": (400, {"message": "Please shorten it.", "code": "context_length_exceeded"}),
    "OpenAI's responses": (400, {"message": "Your input exceeds the context window of this model."}),
    "vLLM": (400, {"message": f"{WINDOW} However, your request has 955 input tokens.", "code": 400}),
    "vLLM, with the reply": (
        400,
        {"message": f"'max_tokens' or 'max_completion_tokens' is too large: 400. {WINDOW} (400 > 800 - 700)."},
    ),
    "vLLM's engine": (
        400,
        {"message": "Prompt (length 955) is longer than the maximum model length of 800."},
    ),
    "SGLang": (400, {"message": "The input (955 tokens) is longer than the model's context length (800 tokens)."}),
    "SGLang, with the reply": (400, {"message": "Requested token count exceeds the model's maximum context length."}),
    "llama.cpp": (400, {"message": "it is too large, try increasing it", "type": "exceed_context_size_error"}),
    "an older llama.cpp": (500, {"message": "Context size has been exceeded.", "type": "server_error"}),
    "TGI": (422, {"message": "Input validation error: `inputs` must have less than 800 tokens. Given: 955"}),
    "TGI, with the reply": (422, {"message": "`inputs` tokens + `max_new_tokens` must be <= 800. Given: 955"}),
    "Anthropic": (400, {"message": "prompt is too long: 955 tokens > 800 maximum"}),
    "Anthropic, with the reply": (
        400,
        {"message": "input length and `max_tokens` exceed context limit: 1100 > 800"},
    ),
    "Gemini": (400, {"message": "The input token count (955) exceeds the maximum number of tokens allowed (800)."}),
    "Mistral": (400, {"message": "Prompt contains 955 tokens, too large for model with 800 maximum context length"}),
    "Fireworks": (400, {"message": "The prompt is too long: 955, model maximum context length: 800"}),
    "Cohere": (400, {"message": "too many tokens: total number of tokens in the prompt cannot exceed 800"}),
    "Bedrock": (400, {"message": "Input is too long for requested model."}),
    "Groq": (400, {"message": "Please reduce the length of the messages or completion."}),
    "TensorRT-LLM": (400, {"message": "Prompt length (955) exceeds maximum input length (800)."}),
    "LiteLLM": (400, {"message": "litellm.ContextWindowExceededError: BadRequestError"}),
    "a proxy": (413, "<html>Request Entity Too Large</html>"),
    "OpenRouter, as a success": (
        200,
        {"message": "This endpoint's maximum context length is 800 tokens.", "code": 400},
    ),
    "FastAPI's detail": (400, {"detail": "Input length 955 exceeds the maximum allowed length of 800 tokens"}),
}
OTHERS = {
    "a reply that is too long": (400, {"message": "max_tokens is too large: 9999. This model supports at most 4096."}),
    "a value": (
        422,
        {"message": "{'loc': ['body', 'temperature'], 'msg': 'Input should be less than or equal to 2'}"},
    ),
    "no model": (404, {"message": "The model `m` does not exist; its maximum context length is unknown."}),
    "the key": (401, {"message": "Invalid key."}),
    "a role": (400, {"message": "messages: roles must alternate"}),
    "content": (400, {"message": "Your request was rejected by the content policy"}),
    "a rate": (429, {"message": "Request too large for m on tokens per min: Limit 800, Requested 955"}),
}


def answer(status, error):
    body = error if isinstance(error, str) else json.dumps({"error": error})
    return lambda handler: handler.answer(status, body, {"Content-Type": "application/json"})


def replied(script):
    """The reply to a request, and how often it was sent."""
    with chat_server(script) as server:
        backend = openai.OpenAIBackend("tiny", server.url, OpenAI(max_retries=1))
        (reply,) = backend.generate([Request(0, 0, "T", [{"role": "user", "content": "a"}])], Sampling())
        backend.close()
        return reply, len(server.bodies)


@pytest.mark.parametrize("server", OUT_OF_CONTEXT)
def test_a_prompt_that_does_not_fit_is_out_of_context_and_is_not_asked_again(server):
    reply, asked = replied(lambda prompt, tries: answer(*OUT_OF_CONTEXT[server]))
    assert (reply.out_of_context is not None, reply.error) == (True, None)
    assert asked == (2 if server == "an older llama.cpp" else 1)  # 500 may pass


@pytest.mark.parametrize("server", OTHERS)
def test_another_refusal_is_a_missing_reply(server):
    reply, asked = replied(lambda prompt, tries: answer(*OTHERS[server]))
    assert reply.out_of_context is None and reply.error is not None
    assert asked == (2 if server == "a rate" else 1)


def test_a_refused_parameter_is_answered_with_the_key_that_leaves_it_out():
    error = {"message": "Unsupported parameter", "param": "max_tokens", "code": "unsupported_parameter"}
    reply, asked = replied(lambda prompt, tries: answer(400, error))
    assert asked == 1 and "actor.openai.request={max_tokens: null}" in reply.error


SAID = "<answer>Go</answer>"
TEXT = {"type": "text", "text": SAID}
WHOLE = f"<think>hm</think>{SAID}"
CONTENTS = {
    "text": ({"content": SAID}, SAID),
    "parts of text": (
        {"content": [{"type": "text", "text": SAID[:4]}, {"type": "text", "text": SAID[4:]}]},
        SAID,
    ),
    "a list of texts": ({"content": ["<answer>", "Go</answer>"]}, SAID),
    "one part": ({"content": TEXT}, SAID),
    "output_text": ({"content": [{"type": "output_text", "text": SAID, "annotations": []}]}, SAID),
    "a text with a value": ({"content": [{"type": "text", "text": {"value": SAID}}]}, SAID),
    "Magistral": ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, TEXT]}, WHOLE),
    "Anthropic": ({"content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, TEXT]}, WHOLE),
    "redacted": ({"content": [{"type": "redacted_thinking", "data": "x"}, TEXT]}, SAID),
    "reasoning": ({"content": [{"type": "reasoning", "text": "hm"}, TEXT]}, WHOLE),
    "a summary": (
        {"content": [{"type": "reasoning", "summary": [{"text": "hm"}]}, TEXT]},
        WHOLE,
    ),
    "a thought beside parts": ({"content": [TEXT], "reasoning_content": "hm"}, WHOLE),
    "a thought beside, in parts": ({"content": SAID, "reasoning": [{"type": "text", "text": "hm"}]}, WHOLE),
    "an image": ({"content": [TEXT, {"type": "image_url", "image_url": {"url": "x"}}]}, SAID),
    "a refusal": ({"content": [{"type": "refusal", "refusal": "no"}]}, "no"),
    "nothing": ({"content": []}, ""),
}


@pytest.mark.parametrize("shape", CONTENTS)
def test_a_content_is_read_as_the_text_that_it_holds_with_its_thought_apart(shape):
    message, text = CONTENTS[shape]
    reply, _ = replied(lambda prompt, tries: raw(json.dumps(completion("") | {"choices": [{"message": message}]})))
    assert (reply.text, reply.error) == (text, None)
