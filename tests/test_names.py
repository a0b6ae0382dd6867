"""The name contract: every public name that users rely on exists, with the parameters that they pass by position.

New parameters may follow those of this table; none of these may be renamed, moved or removed.
"""

import importlib
import inspect

import pytest

SIGNATURES = {
    "ragen.llm_agent.es_manager": {
        "EnvStateManager": "config mode",
        "EnvStateManager.reset": "self seed",
        "EnvStateManager.step": "self all_env_inputs",
        "EnvStateManager.get_rollout_states": "self",
        "EnvStateManager.render": "self",
        "EnvStateManager.close": "self",
        "EnvStateManager._step_sequential": "self",
        "EnvStateManager._step_parallel": "self",
        "EnvStatus": "truncated terminated num_actions rewards seed",
    },
    "ragen.llm_agent.ctx_manager": {
        "ContextManager": "config tokenizer processor mode",
        "ContextManager.get_lm_inputs": "self",
        "ContextManager.get_env_inputs": "self",
        "ContextManager.formulate_rollouts": "self",
    },
    "ragen.llm_agent.agent_proxy": {
        "LLMAgentProxy": "config actor_rollout_wg tokenizer",
        "LLMAgentProxy.rollout": "self",
    },
    "envlanes.gym": {
        "LaneVectorEnv": "env_fns shared_memory copy context daemon worker observation_mode autoreset_mode"
        " max_concurrency",
        "make_vec": "id num_envs",
    },
    "ragen.env": {
        "MultiProcessEnvironmentContainer": "env_type env_num group_n seed env_kwargs",
        "MultiProcessEnvironmentContainer.reset": "self seeds",
        "MultiProcessEnvironmentContainer.step": "self actions",
        "MultiProcessEnvironmentContainer.render": "self",
        "MultiProcessEnvironmentContainer.get_available_actions": "self",
        "MultiProcessEnvironmentContainer.close": "self",
        "to_numpy": "data",
        **{
            f"{name}EnvironmentManager": "envs projection_f env_name"
            for name in ("Sokoban", "WebShop", "Countdown", "MetaMathQA", "FrozenLake", "Bandit")
        },
        "EnvironmentManagerBase": "envs projection_f env_name",
        "EnvironmentManagerBase.reset": "self",
        "EnvironmentManagerBase.step": "self text_actions",
        "EnvironmentManagerBase.success_evaluator": "self total_infos total_batch_list episode_rewards episode_lengths",
        "create_projection_function": "env_type",
        **{
            f"{name}_projection": "texts action_spaces"
            for name in ("sokoban", "frozen_lake", "webshop", "countdown", "metamathqa", "bandit", "generic")
        },
        "TrajectoryCollector": "config tokenizer processor",
        "TrajectoryCollector.preprocess_batch": "self gen_batch obs",
        "TrajectoryCollector.multi_turn_loop": "self gen_batch actor_rollout_wg envs is_train",
        "filter_group_data": "batch_list episode_rewards episode_lengths success traj_uid tool_callings",
        "to_list_of_dict": "batch",
        "make_environments": "config",
        "create_environments": "config",
        "validate_environment_config": "config",
        "create_single_environment_for_testing": "env_type seed env_kwargs",
        "get_supported_environment_types": "",
        "get_environment_requirements": "env_type",
    },
    "ragen.meta": {
        "ParallelEnvManager": "env_fns start_method",
        "ParallelEnvManager.reset": "self env_idx",
        "ParallelEnvManager.step": "self env_idx action",
        "ParallelEnvManager.reset_all": "self tasks",
        "ParallelEnvManager.step_all": "self actions",
        "ParallelEnvManager.get_attr": "self name env_idx subattrs",
        "ParallelEnvManager.seed": "self",
        "ParallelEnvManager.close": "self",
        "make_env": "env_id episodes_per_task seed oracle",
        "make_parallel_env": "env_id episodes_per_task num_workers seed oracle",
        "VariBadWrapper": "env episodes_per_task oracle",
        "Learner.collect_rollouts": "self num_rollouts random_actions",
        "Learner.collect_rollouts_parallel": "self num_rollouts random_actions parallel_env",
    },
    "ragen.cage2": {
        "ParallelEnvWrapper": "n_envs scenario_path red_agent_type",
        "ParallelEnvWrapper.reset": "self",
        "ParallelEnvWrapper.step": "self actions",
        "ParallelEnvWrapper.get_true_states": "self",
        "ParallelEnvWrapper.close": "self",
        "ParallelTrajectoryBuffer": "n_envs",
        "ParallelTrajectoryBuffer.get_trajectories": "self",
        "ParallelTrajectoryBuffer.compute_returns": "self gamma",
        "ParallelTrajectoryBuffer.reset": "self",
        "ParallelOrderConditionedPPO": "input_dims n_envs lr betas gamma K_epochs eps_clip workflow_order"
        " workflow_manager alignment_alpha alignment_beta update_steps",
        "ParallelWorkflowRLTrainer": "n_envs n_workflows train_episodes_per_env max_steps scenario_path red_agent_type"
        " alignment_alpha alignment_beta gp_beta checkpoint_dir compliance_threshold min_episodes update_every_steps",
        "ParallelWorkflowRLTrainer.run_workflow_search": "self",
    },
}

ATTRIBUTES = {
    ("ragen.env", "REGISTERED_ENVS"),
    ("ragen.env", "REGISTERED_ENV_CONFIGS"),
    ("ragen.env.parallel_env_container", "MultiProcessEnvironmentContainer"),
    ("ragen.env.environment_manager", "SokobanEnvironmentManager"),
    ("ragen.env.projection_functions", "create_projection_function"),
    ("ragen.env.trajectory_collector", "TrajectoryCollector"),
    ("ragen.env.environment_factory", "make_environments"),
    ("ragen.meta", "Learner"),
}


@pytest.mark.parametrize("module", SIGNATURES)
def test_public_names_keep_their_parameters(module):
    for path, parameters in SIGNATURES[module].items():
        found = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
        names = list(inspect.signature(found).parameters)
        assert names[: len(parameters.split())] == parameters.split(), f"{module}.{path}"


def test_public_names_without_a_signature_exist():
    for module, name in ATTRIBUTES:
        assert getattr(importlib.import_module(module), name) is not None
