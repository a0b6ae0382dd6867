"""From observation to prompt, and from reply to action.

conversation     builds every prompt: instructions of tags, chats of turns, steps of containers
templates        the texts of prompts as data: our own, or a file's
replies          parses every reply: RAGEN's tags, and projections for containers; removes control tokens
chat_template    renders chats by the tokenizer's template, and finds contents in the text
checkout         reads RAGEN's prompts of either generation from a checkout's source

``python -m ragen.llm_agent.prompting`` imports RAGEN's prompts and shows our own.
"""
