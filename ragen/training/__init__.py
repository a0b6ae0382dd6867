"""From rollouts to a better model. The floor above :mod:`ragen.llm_agent`; nothing below imports it.

``python train.py --config-name tiny`` trains a model of about 160,000 parameters on a CPU, from nothing:

    scripted backend -> LLMAgentProxy -> demonstrations -> warm_up        (the model learns to answer at all)
    the model itself -> LLMAgentProxy -> trajectories -> filtering -> updates   (and then by GRPO or PPO to answer well)

Advantages, policy loss and aggregation are verl's (``verl.trainer.ppo.core_algos``); prompts, masks, scores and
normalization are those that every model gets here. So it also shows that these are right end to end: with
``trainer.reward_sign: -1`` the same code has to learn to fail.
"""
