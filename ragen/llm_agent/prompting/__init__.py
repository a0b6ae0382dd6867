"""From observation to prompt, and from reply to action.

conversation     where every prompt is built: instructions of tags, chats of turns, steps of containers
templates        the words of prompts, as data: our own, or a file's
replies          where every reply is read: RAGEN's tags, and projections for containers
chat_template    chats to text by the tokenizer's template, and which part of that text is whose
control_tokens   keeps a tokenizer's control tokens out of what people, environments and models wrote
checkout         RAGEN's own prompts of either generation, read off a checkout's source

``python -m ragen.llm_agent.prompting`` imports RAGEN's prompts and shows our own.
"""
