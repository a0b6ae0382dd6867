"""Rollouts in rows by turn: what verl-agent's learners train on, collected from containers of environments.

managers      prompts with histories around a container, and a model's texts back to its actions
factory       a configuration to a manager for training and one for validation
batches       a manager's prompts to a batch for the actor, and its replies to rows of tokens
collector     turns until all is over, and the batch of all rows
rollouts      the same for ``LLMAgentProxy``, in the form of RAGEN's training batches

Prompts are built, and replies read, where RAGEN's are: :mod:`ragen.llm_agent.prompting`.
"""
