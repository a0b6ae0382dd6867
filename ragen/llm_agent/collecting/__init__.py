"""Rollouts in rows by turn: what verl-agent's learners train on, collected from containers of environments.

factory       a configuration to a manager for training and one for validation
prompts       a manager's texts to a batch for the actor
answers       an actor's replies to rows of tokens
collector     turns until all is over, and the batch of all rows
rollouts      the same for ``LLMAgentProxy``, in the form of RAGEN's training batches
"""
