"""Builds prompts from observations, and parses replies into actions.

conversation     builds prompts: instructions of tags, chats of turns
templates        the texts of prompts as data: this package's, or a file's
replies          parses all replies: RAGEN's tags, and projections for containers; removes control tokens
chat_template    renders chats by the tokenizer's template, and locates contents in the text

``python -m ragen.llm_agent.prompts`` prints this package's prompts as a file.
"""
