//! Generates traces of mixture-of-experts models from a seed. The number of tokens of each expert, and so the size of
//! its buffers, changes at random in each step and layer: these sizes rarely recur. `moe:SHAPE:SEED` names a trace, and
//! `moe:SHAPE:SEED:STEPS` a trace with this number of steps.

use std::fmt::Write;
use std::iter::repeat_n;

/// The first characters of the name of a generated trace.
pub const PREFIX: &str = "moe:";

/// Layout of the experts' work in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Experts {
    /// One expert after another, each with buffers for its own tokens; no token is dropped.
    Looped,
    /// All experts at once, the tokens of each padded to a multiple of 128; no token is dropped.
    Grouped,
    /// All experts at once, each with room for as many tokens as the busiest expert has.
    Capacity,
    /// The same as `Grouped`, with tokens from other devices: their number differs in each layer.
    Parallel,
}

/// A model and its work. Activations and weights have two bytes an element.
#[derive(Clone, Copy, Debug)]
struct Shape {
    name: &'static str,
    experts: Experts,
    layers: u64,
    count: u64,
    top_k: u64,
    hidden: u64,
    inner: u64,
    vocabulary: u64,
    tokens: u64,
    /// Percent of the tokens that a step may lack.
    fewer: u64,
    /// Whether a step has a backward pass.
    trains: bool,
    /// Whether the backward pass computes each layer's activations again.
    recomputes: bool,
    steps: u64,
}

const BASE: Shape = Shape {
    name: "",
    experts: Experts::Looped,
    layers: 8,
    count: 8,
    top_k: 2,
    hidden: 2048,
    inner: 5632,
    vocabulary: 32_000,
    tokens: 4096,
    fewer: 0,
    trains: true,
    recomputes: false,
    steps: 80,
};

/// All shapes. They differ in the number of layers and tokens, in the number, size and layout of the
/// experts, and in whether a step has a backward pass and recomputes activations.
const SHAPES: [Shape; 7] = [
    Shape { name: "coarse", ..BASE },
    Shape { name: "fine", count: 64, top_k: 6, inner: 1408, layers: 6, steps: 50, ..BASE },
    Shape { name: "recomputed", recomputes: true, layers: 16, tokens: 8192, ..BASE },
    Shape {
        name: "grouped",
        experts: Experts::Grouped,
        tokens: 8192,
        fewer: 40,
        steps: 200,
        ..BASE
    },
    Shape {
        name: "capacity",
        experts: Experts::Capacity,
        count: 32,
        top_k: 1,
        inner: 4096,
        tokens: 8192,
        steps: 200,
        ..BASE
    },
    Shape {
        name: "parallel",
        experts: Experts::Parallel,
        count: 16,
        layers: 12,
        steps: 200,
        ..BASE
    },
    Shape { name: "inference", trains: false, layers: 16, fewer: 75, steps: 150, ..BASE },
];

/// Names of all shapes.
pub fn names() -> impl Iterator<Item = &'static str> {
    SHAPES.iter().map(|shape| shape.name)
}

/// Generates the text of the trace `name`, with lines like those of a recorded trace. Default seed:
/// 1. Default number of steps: that of the shape.
///
/// # Errors
/// A message if the shape is unknown, if the seed or the number of steps is not a whole number from
/// 1, or if further parts follow.
pub fn generate(name: &str) -> Result<String, String> {
    let mut parts = name.strip_prefix(PREFIX).unwrap_or(name).split(':');
    let wanted = parts.next().unwrap_or_default();
    let shape = SHAPES.iter().find(|shape| shape.name == wanted).ok_or_else(|| {
        let names: Vec<&str> = names().collect();
        format!("there is no shape `{wanted}`; there are {}", names.join(", "))
    })?;
    let number = |part: Option<&str>, default: u64, what: &str| match part.map(str::parse) {
        None => Ok(default),
        Some(Ok(number)) if number > 0 => Ok(number),
        _ => Err(format!("{what} `{}` is not a whole number from 1", part.unwrap_or_default())),
    };
    let seed = number(parts.next(), 1, "the seed")?;
    let steps = number(parts.next(), shape.steps, "the number of steps")?;
    if let Some(more) = parts.next() {
        return Err(format!("`{more}` is too much: expected {PREFIX}SHAPE:SEED:STEPS"));
    }
    let mut program = Program::new(*shape, seed);
    program.run(steps);
    Ok(program.text)
}

/// Marsaglia's xorshift64.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| {
            random.below(1);
        });
        random
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// The id and the bytes of a block.
type Block = (u64, u64);

/// Blocks and token counts of a layer that its backward pass uses.
struct Saved {
    /// The blocks of each module, in the order of the forward pass.
    modules: Vec<Vec<Block>>,
    /// Number of tokens of each expert.
    load: Vec<u64>,
}

/// Writes the lines of a trace.
struct Program {
    shape: Shape,
    random: Random,
    text: String,
    next: u64,
    stream: u64,
    /// Popularity of each expert in each layer; it drifts from step to step.
    popular: Vec<Vec<u64>>,
}

impl Program {
    fn new(shape: Shape, seed: u64) -> Self {
        let (random, text) = (Random::new(seed), String::new());
        Self { shape, random, text, next: 0, stream: 0, popular: Vec::new() }
    }

    fn alloc(&mut self, bytes: u64) -> Block {
        let id = self.next;
        self.next += 1;
        let _ = writeln!(self.text, "a,{id},{},{}", bytes.max(1), self.stream);
        (id, bytes)
    }

    fn free(&mut self, (id, _): Block) {
        let _ = writeln!(self.text, "f,{id},,");
    }

    /// Allocates a block and frees it at once.
    fn scratch(&mut self, bytes: u64) {
        let block = self.alloc(bytes);
        self.free(block);
    }

    fn run(&mut self, steps: u64) {
        let Shape { layers, count, hidden, vocabulary, trains, .. } = self.shape;
        let kept = if trains { 3 } else { 1 }; // a weight, and two tensors of optimizer state
        for _ in 0..layers {
            for bytes in self.weights().into_iter().flat_map(|it| repeat_n(it, kept)) {
                self.alloc(bytes);
            }
            let popular = (0..count).map(|_| 100 + self.random.below(900)).collect();
            self.popular.push(popular);
        }
        for bytes in repeat_n(vocabulary * hidden * 2, kept * 2) {
            self.alloc(bytes);
        }
        (0..steps).for_each(|_| self.step());
    }

    /// Returns the sizes of a layer's weights, in bytes.
    fn weights(&self) -> Vec<u64> {
        let Shape { count, hidden, inner, experts, .. } = self.shape;
        let mut weights = vec![hidden * 2, hidden * hidden * 6, hidden * hidden * 2, hidden * 2];
        weights.push(hidden * count * 2);
        let each = hidden * inner * 2;
        match experts {
            Experts::Looped => weights.extend((0..3 * count).map(|_| each)),
            _ => weights.extend([2 * each * count, each * count]),
        }
        weights
    }

    /// Returns the number of tokens for each expert of a layer. The popularity of the experts
    /// drifts.
    fn route(&mut self, layer: usize, tokens: u64) -> Vec<u64> {
        let Self { random, popular, shape, .. } = self;
        for weight in &mut popular[layer] {
            *weight = (*weight * (90 + random.below(21)) / 100).clamp(50, 5000);
        }
        let chances: Vec<u64> =
            popular[layer].iter().map(|weight| weight * (500 + random.below(1001))).collect();
        let (total, slots) = (chances.iter().sum::<u64>(), tokens * shape.top_k);
        chances.iter().map(|chance| (slots * chance / total).min(tokens)).collect()
    }

    fn step(&mut self) {
        let Shape { layers, hidden, vocabulary, tokens, fewer, trains, recomputes, .. } =
            self.shape;
        let tokens = tokens - self.random.below(tokens * fewer / 100 + 1);
        let ids = self.alloc(tokens * 8);
        let mut x = self.alloc(tokens * hidden * 2);
        let mut saved: Vec<(Saved, Block)> = Vec::new();
        for layer in 0..layers as usize {
            let load = self.route(layer, tokens);
            let (out, mut kept) = self.layer(tokens, load);
            if !trains || recomputes {
                kept.modules.drain(..).flatten().for_each(|block| self.free(block));
            }
            if trains {
                saved.push((kept, x));
            } else {
                self.free(x);
            }
            x = out;
        }
        let logits = self.alloc(if trains { tokens } else { 64 } * vocabulary * 2);
        if trains {
            let wide = self.alloc(tokens * vocabulary * 4);
            self.scratch(4);
            let gradient = self.alloc(tokens * vocabulary * 4);
            self.free(wide);
            self.free(logits);
            let narrow = self.alloc(tokens * vocabulary * 2);
            self.free(gradient);
            let mut gradients = vec![self.alloc(vocabulary * hidden * 2)];
            let mut down = self.alloc(tokens * hidden * 2);
            self.free(narrow);
            for (mut kept, input) in saved.into_iter().rev() {
                if recomputes {
                    let load = std::mem::take(&mut kept.load);
                    let (out, again) = self.layer(tokens, load);
                    self.free(out);
                    kept = again;
                }
                down = self.backward(tokens, kept, down, &mut gradients);
                self.free(input);
            }
            self.free(down);
            self.free(x);
            for gradient in gradients {
                self.scratch(gradient.1.min(1 << 20));
                self.free(gradient);
            }
        } else {
            self.scratch(64 * vocabulary * 4);
            self.free(logits);
            self.free(x);
        }
        self.free(ids);
    }

    /// Runs a layer's forward pass. Returns its result and the blocks for the backward pass.
    fn layer(&mut self, tokens: u64, load: Vec<u64>) -> (Block, Saved) {
        let Shape { count, top_k, hidden, .. } = self.shape;
        let row = tokens * hidden * 2;
        let mut modules = Vec::new();
        let attention = [row, 3 * row, row, row, row, tokens * 64, row].map(|it| self.alloc(it));
        self.scratch(1 << 16);
        let projected = self.alloc(row);
        let sum = self.alloc(row);
        self.free(projected);
        modules.push(attention.to_vec());
        let normal = self.alloc(row);
        let logits = self.alloc(tokens * count * 2);
        let chances = self.alloc(tokens * count * 4);
        self.free(logits);
        let chosen = [tokens * top_k * 4, tokens * top_k * 8].map(|it| self.alloc(it));
        self.scratch(tokens * top_k * count * 8);
        self.scratch(count * 8);
        modules.push([&[sum, normal, chances], &chosen[..]].concat());
        let out = self.alloc(row);
        match self.shape.experts {
            Experts::Looped => {
                for &own in load.iter().filter(|own| **own > 0) {
                    modules.push(self.expert(own));
                }
            }
            layout => modules.push(self.all_experts(tokens, layout, &load)),
        }
        let result = self.alloc(row);
        self.free(out);
        (result, Saved { modules, load })
    }

    /// Runs an expert's forward pass.
    fn expert(&mut self, tokens: u64) -> Vec<Block> {
        let Shape { hidden, inner, .. } = self.shape;
        let (row, wide) = (tokens * hidden * 2, tokens * inner * 2);
        let kept = [tokens * 8, tokens * 8, row, wide, wide, wide, wide, row];
        let kept = kept.map(|bytes| self.alloc(bytes));
        self.scratch(tokens * 2);
        self.scratch(row);
        kept.to_vec()
    }

    /// Runs the forward pass of all experts together.
    fn all_experts(&mut self, tokens: u64, layout: Experts, load: &[u64]) -> Vec<Block> {
        let Shape { count, hidden, inner, .. } = self.shape;
        let tokens: u64 = match layout {
            Experts::Capacity => {
                load.iter().max().copied().unwrap_or_default().next_multiple_of(8) * count
            }
            _ => load.iter().map(|own| own.next_multiple_of(128)).sum::<u64>().max(tokens),
        };
        let mut kept = vec![self.alloc(tokens * 8)];
        let mut rows = tokens;
        if layout == Experts::Parallel {
            // This device gets a random number of the tokens of all devices. They arrive on another
            // stream.
            rows = tokens / 2 + self.random.below(tokens * 3 / 2);
            self.stream = 1;
        }
        let (row, wide) = (rows * hidden * 2, rows * inner * 2);
        kept.push(self.alloc(row));
        self.stream = 0;
        kept.extend([2 * wide, wide].map(|bytes| self.alloc(bytes)));
        if layout == Experts::Parallel {
            let back = self.alloc(row);
            self.stream = 1;
            self.scratch(tokens * hidden * 2);
            self.stream = 0;
            self.free(back);
        }
        kept.push(self.alloc(row));
        self.scratch(tokens * hidden * 2);
        kept
    }

    /// Runs a layer's backward pass. Returns the gradient of the layer's input.
    fn backward(
        &mut self,
        tokens: u64,
        saved: Saved,
        mut down: Block,
        gradients: &mut Vec<Block>,
    ) -> Block {
        let row = tokens * self.shape.hidden * 2;
        let mut weights = self.weights();
        for (at, mut module) in saved.modules.into_iter().enumerate().rev() {
            // Each saved block gets a gradient, computed from the gradient of the block after it.
            let mut behind = None;
            let own = if at >= 2 && self.shape.experts == Experts::Looped { 3 } else { 2 };
            while let Some(block) = module.pop() {
                let gradient = self.alloc(block.1);
                if let Some(behind) = behind.replace(gradient) {
                    self.free(behind);
                }
                self.free(block);
                if module.len() < own
                    && let Some(bytes) = weights.pop()
                {
                    gradients.push(self.alloc(bytes));
                }
            }
            let sum = self.alloc(row);
            for done in behind.into_iter().chain([std::mem::replace(&mut down, sum)]) {
                self.free(done);
            }
        }
        gradients.extend(weights.into_iter().map(|bytes| self.alloc(bytes)));
        down
    }
}
