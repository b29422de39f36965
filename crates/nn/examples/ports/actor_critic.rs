//! `reinforcement_learning/actor_critic.py`: an actor balances a pole, and a critic estimates the values of states.
//!
//! PyTorch's program has 91 lines without blanks and comments.

use warpline::functional::{relu, smooth_l1_loss, softmax};
use warpline::{Device, Result, Tensor, expr, stack, tensor};
use warpline_nn::optim::{Adam, AdamOptions, Optimizer};
use warpline_nn::{Linear, Module};

use crate::cart_pole::{CartPole, REWARD_THRESHOLD, State};

const GAMMA: f64 = 0.99;
const LOG_INTERVAL: usize = 10;

struct SavedAction {
    log_prob: Tensor,
    value: Tensor,
}

/// Actor and critic in one model.
#[derive(Module)]
struct Policy {
    affine1: Linear,
    /// The actor's layer.
    action_head: Linear,
    /// The critic's layer.
    value_head: Linear,
    #[module(skip)]
    saved_actions: Vec<SavedAction>,
    rewards: Vec<f64>,
}

impl Policy {
    fn new() -> Result<Self> {
        Ok(Self {
            affine1: Linear::new(4, 128, ())?,
            action_head: Linear::new(128, 2, ())?,
            value_head: Linear::new(128, 1, ())?,
            saved_actions: Vec::new(),
            rewards: Vec::new(),
        })
    }

    /// Returns the probability of each action, and the value of the state.
    fn forward(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let x = relu(&self.affine1.forward(x)?)?;
        let action_prob = softmax(&self.action_head.forward(&x)?, -1)?;
        let state_values = self.value_head.forward(&x)?;
        Ok((action_prob, state_values))
    }
}

fn select_action(model: &mut Policy, state: State, device: Device) -> Result<i64> {
    let state = tensor(state, device)?;
    let (probs, value) = model.forward(&state)?;

    // Sample an action from the categorical distribution of the probabilities.
    let action = probs.multinomial(1, true)?;
    let log_prob = probs.gather(-1, &action)?.log()?;
    model.saved_actions.push(SavedAction { log_prob, value });

    // The action to take (left or right).
    action.item()
}

/// Computes the losses of actor and critic, and updates the model.
fn finish_episode(model: &mut Policy, optimizer: &mut Adam, device: Device) -> Result<()> {
    let mut discounted = 0.0;
    let mut policy_losses = Vec::new();
    let mut value_losses = Vec::new();
    let mut returns = Vec::new();

    // Calculate the true values from the rewards of the environment.
    for r in model.rewards.iter().rev() {
        discounted = r + GAMMA * discounted;
        returns.insert(0, discounted as f32);
    }

    let returns = tensor(returns, device)?;
    let eps = f32::EPSILON;
    let returns = expr!((returns - returns.mean(())) / (returns.std(()) + eps))?;

    for (SavedAction { log_prob, value }, r) in model.saved_actions.iter().zip(returns.iter()?) {
        let advantage = expr!(r - value.item::<f32>())?;
        policy_losses.push(expr!(-log_prob * advantage)?);
        value_losses.push(smooth_l1_loss(value, &r.unsqueeze(0)?, ())?);
    }

    optimizer.zero_grad()?;
    let loss = expr!(stack(&policy_losses, 0).sum(()) + stack(&value_losses, 0).sum(()))?;
    loss.backward()?;
    optimizer.step()?;

    model.rewards.clear();
    model.saved_actions.clear();
    Ok(())
}

/// Trains for at most `steps` episodes. With the seed of `small`, the first 50 episodes already show progress on the
/// CPU and on a GPU.
pub(crate) fn run(device: Device, steps: Option<usize>, small: bool) -> anyhow::Result<()> {
    let mut env = CartPole::default();
    warpline::manual_seed(if small { 6 } else { 543 });
    let mut model = Policy::new()?;
    model.to(device)?;
    let mut optimizer = Adam::new(model.parameters(), AdamOptions::new().lr(3e-2))?;
    let mut running_reward = 10.0;

    for i_episode in 1..=steps.unwrap_or(usize::MAX) {
        let mut state = env.reset()?;
        let mut ep_reward = 0.0;

        // An episode has at most 9999 steps.
        let mut t = 0;
        while t < 9999 {
            t += 1;
            let action = select_action(&mut model, state, device)?;
            let (next, reward, ended) = env.step(action);
            state = next;
            model.rewards.push(reward);
            ep_reward += reward;
            if ended {
                break;
            }
        }

        running_reward = 0.05 * ep_reward + (1.0 - 0.05) * running_reward;
        finish_episode(&mut model, &mut optimizer, device)?;
        if i_episode % LOG_INTERVAL == 0 {
            println!(
                "Episode {i_episode}\tLast reward: {ep_reward:.2}\tAverage reward: {running_reward:.2}"
            );
        }

        if running_reward > REWARD_THRESHOLD {
            println!(
                "Solved! Running reward is now {running_reward} and the last episode runs to {t} time steps!"
            );
            break;
        }
    }
    Ok(())
}
