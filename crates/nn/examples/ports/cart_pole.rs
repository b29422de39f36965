//! A pole on a cart. Replaces `gymnasium`'s `CartPole-v1`, and has the same constants.

use warpline::{Result, rand};

/// Number of steps after which an episode is truncated.
const MAX_STEPS: usize = 500;

/// The average reward at which the problem is solved.
pub(crate) const REWARD_THRESHOLD: f64 = 475.0;

/// Position and velocity of the cart, angle and angular velocity of the pole, in SI units.
pub(crate) type State = [f32; 4];

/// The environment.
#[derive(Debug, Default)]
pub(crate) struct CartPole {
    state: State,
    steps: usize,
}

impl CartPole {
    /// Starts an episode at a random state near balance.
    pub(crate) fn reset(&mut self) -> Result<State> {
        for value in &mut self.state {
            *value = rand([1], ())?.item::<f32>()? * 0.1 - 0.05;
        }
        self.steps = 0;
        Ok(self.state)
    }

    /// Pushes the cart to the left (0) or to the right (1) for 20 ms. Returns the new state, the reward, and whether
    /// the episode has ended.
    pub(crate) fn step(&mut self, action: i64) -> (State, f64, bool) {
        let force = if action == 1 { 10.0 } else { -10.0 };
        let (gravity, pole_mass, total_mass, half_length, tau) = (9.8, 0.1, 1.1, 0.5, 0.02);
        let [x, x_dot, theta, theta_dot] = self.state;
        let (sin, cos) = theta.sin_cos();
        let push = (force + pole_mass * half_length * theta_dot * theta_dot * sin) / total_mass;
        let inertia = half_length * (4.0 / 3.0 - pole_mass * cos * cos / total_mass);
        let theta_acc = (gravity * sin - cos * push) / inertia;
        let x_acc = push - pole_mass * half_length * theta_acc * cos / total_mass;
        self.state = [
            x + tau * x_dot,
            x_dot + tau * x_acc,
            theta + tau * theta_dot,
            theta_dot + tau * theta_acc,
        ];
        self.steps += 1;
        let fell = self.state[0].abs() > 2.4 || self.state[2].abs() > 12f32.to_radians();
        (self.state, 1.0, fell || self.steps == MAX_STEPS)
    }
}
