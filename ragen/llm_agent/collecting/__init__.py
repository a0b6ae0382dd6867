"""Rollouts with one row per turn, as verl-agent's learners train on, collected from containers of environments.

step_prompts  the prompt of a step, one message, and its texts
managers      prompts with histories for a container, and parsing of a model's texts into actions
factory       managers for training and validation from a configuration
batches       batches for the actor from a manager's prompts, and rows of tokens from its replies
collector     the loop over turns, and the batch of all rows
rollouts      the same for ``LLMAgentProxy``, in the format of RAGEN's training batches

Replies are parsed in :mod:`ragen.llm_agent.prompting`, like RAGEN's.
"""
