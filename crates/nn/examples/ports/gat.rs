//! Classifies the nodes of a citation graph with a graph attention network: `gat` of pytorch/examples.
//!
//! `main.py` has 179 lines without comments. A random graph of papers with Cora's sizes replaces Cora. Its
//! papers cite papers of their own class more often than others, and use the words of their class more often. A
//! step is an epoch.

use std::time::Instant;

use warpline::autograd::no_grad;
use warpline::functional::{DropoutOptions, dropout, elu, log_softmax, softmax};
use warpline::{
    DType, Device, Result, Tensor, arange, empty, expr, eye, manual_seed, rand, randint, randperm,
    where_cond,
};
use warpline_nn::optim::{Adam, AdamOptions, Optimizer};
use warpline_nn::{LeakyReLU, Module, NLLLoss, Parameter, Training, init};

/// Settings of [`GAT`] and its layers.
#[derive(Clone, Copy, Debug)]
struct GATOptions {
    /// Whether the attention heads are concatenated instead of averaged.
    concat: bool,
    dropout: f64,
    leaky_relu_slope: f64,
}

#[derive(Debug, Module)]
struct GraphAttentionLayer {
    #[module(name = "W")]
    w: Parameter,
    a: Parameter,
    leakyrelu: LeakyReLU,
    n_heads: usize,
    n_hidden: usize,
    concat: bool,
    dropout: f64,
    training: Training,
}

impl GraphAttentionLayer {
    fn new(
        in_features: usize,
        out_features: usize,
        n_heads: usize,
        options: GATOptions,
    ) -> Result<Self> {
        let GATOptions { concat, dropout, leaky_relu_slope } = options;
        let n_hidden = if concat { out_features / n_heads } else { out_features };
        let layer = Self {
            w: Parameter::new(empty((in_features, n_hidden * n_heads), ())?)?,
            a: Parameter::new(empty((n_heads, 2 * n_hidden, 1), ())?)?,
            leakyrelu: LeakyReLU::new(leaky_relu_slope),
            n_heads,
            n_hidden,
            concat,
            dropout,
            training: Training::default(),
        };
        layer.reset_parameters()?;
        Ok(layer)
    }

    fn reset_parameters(&self) -> Result<()> {
        init::xavier_normal_(&self.w, 1.0)?;
        init::xavier_normal_(&self.a, 1.0)?;
        Ok(())
    }

    /// Returns the attention score of each pair of nodes, `[heads, nodes, nodes]`.
    fn attention_scores(&self, h_transformed: &Tensor) -> Result<Tensor> {
        let source_scores = h_transformed.matmul(&self.a.i((.., ..self.n_hidden))?)?;
        let target_scores = h_transformed.matmul(&self.a.i((.., self.n_hidden..))?)?;
        let e = expr!(source_scores + target_scores.transpose(-2, -1))?;
        self.leakyrelu.forward(&e)
    }

    /// Returns the features of the nodes after attention to their neighbours: `[nodes, in]` to `[nodes, out]`.
    fn forward(&self, h: &Tensor, adj_mat: &Tensor) -> Result<Tensor> {
        let n_nodes = h.size()[0];
        let options = DropoutOptions::new().p(self.dropout).training(self.training.get());
        let h_transformed = dropout(&h.mm(&self.w)?, options)?;
        let h_transformed = h_transformed.view((n_nodes, self.n_heads, self.n_hidden))?;
        let h_transformed = h_transformed.permute((1, 0, 2))?;

        let e = self.attention_scores(&h_transformed)?;
        let e = where_cond(&adj_mat.gt(0)?, &e, -9e16)?;
        let attention = dropout(&softmax(&e, -1)?, options)?;

        let h_prime = attention.matmul(&h_transformed)?;
        if self.concat {
            h_prime.permute((1, 0, 2))?.contiguous()?.view((n_nodes, -1))
        } else {
            h_prime.mean(0)
        }
    }
}

#[derive(Debug, Module)]
struct GAT {
    gat1: GraphAttentionLayer,
    gat2: GraphAttentionLayer,
}

impl GAT {
    fn new(
        in_features: usize,
        n_hidden: usize,
        n_heads: usize,
        num_classes: usize,
        options: GATOptions,
    ) -> Result<Self> {
        let last = GATOptions { concat: false, ..options };
        Ok(Self {
            gat1: GraphAttentionLayer::new(in_features, n_hidden, n_heads, options)?,
            gat2: GraphAttentionLayer::new(n_hidden, num_classes, 1, last)?,
        })
    }

    /// Returns the log-probabilities of the classes, `[nodes, classes]`.
    fn forward(&self, input_tensor: &Tensor, adj_mat: &Tensor) -> Result<Tensor> {
        let x = elu(&self.gat1.forward(input_tensor, adj_mat)?, ())?;
        log_softmax(&self.gat2.forward(&x, adj_mat)?, 1)
    }
}

/// Nodes with their features, `[nodes, features]`, and their neighbours, `[nodes, nodes]`.
type Graph = (Tensor, Tensor);

/// Returns a graph and the classes of its nodes.
fn load_graph(nodes: usize, words: usize, classes: i64, device: Device) -> Result<(Graph, Tensor)> {
    let labels = randint(0, classes, [nodes], ())?;
    let rows = labels.unsqueeze(1)?;
    let own_word = expr!(rows == arange(words, ()) % classes)?;
    let features = expr!(rand((nodes, words), ()) < where_cond(&own_word, 0.03, 0.01))?;
    let features = features.to(DType::F32)?;
    let features = expr!(features / features.sum_keepdim(1).clamp_min(1))?;

    let same = expr!(rows == labels)?;
    let (own, other) = (20.0 / nodes as f64, 1.0 / nodes as f64);
    let edges = expr!(rand((nodes, nodes), ()) < where_cond(&same, own, other))?;
    let adj_mat = expr!(eye(nodes, ()) + edges)?;
    Ok(((features.to(device)?, adj_mat.to(device)?), labels.to(device)?))
}

fn train_iter(
    model: &mut GAT,
    optimizer: &mut Adam,
    criterion: &NLLLoss,
    input: &Graph,
    target: &Tensor,
    mask_train: &Tensor,
) -> Result<()> {
    model.train();
    optimizer.zero_grad()?;
    let output = model.forward(&input.0, &input.1)?;
    let loss = criterion.forward(&output.i(mask_train)?, &target.i(mask_train)?)?;
    loss.backward()?;
    optimizer.step()
}

/// Returns loss and accuracy on the nodes of `mask`.
fn test(
    model: &mut GAT,
    criterion: &NLLLoss,
    input: &Graph,
    target: &Tensor,
    mask: &Tensor,
) -> Result<(f32, f32)> {
    model.eval();
    no_grad(|| {
        let output = model.forward(&input.0, &input.1)?;
        let (output, target) = (output.i(mask)?, target.i(mask)?);
        let loss = criterion.forward(&output, &target)?;
        let acc = expr!((output.argmax(1) == target).to(DType::F32).mean(()))?;
        Ok((loss.item()?, acc.item()?))
    })
}

pub(crate) fn run(device: Device, steps: Option<usize>, small: bool) -> anyhow::Result<()> {
    let (nodes, words, hidden_dim) = if small { (130, 140, 16) } else { (2708, 1433, 64) };
    let (num_heads, num_classes, val_every) = (8, 7, if small { 5 } else { 20 });
    manual_seed(13);
    println!("Using {device} device");
    let (input, labels) = load_graph(nodes, words, num_classes, device)?;
    let idx = randperm(nodes, ())?.to(device)?;
    let (end_test, end_val) = (nodes * 1200 / 2708, nodes * 1600 / 2708);
    let idx_test = idx.i(..end_test)?;
    let (idx_val, idx_train) = (idx.i(end_test..end_val)?, idx.i(end_val..)?);

    let options = GATOptions { concat: false, dropout: 0.6, leaky_relu_slope: 0.2 };
    let mut gat_net = GAT::new(words, hidden_dim, num_heads, num_classes as usize, options)?;
    gat_net.to(device)?;
    let options = AdamOptions::new().lr(0.005).weight_decay(5e-4);
    let mut optimizer = Adam::new(gat_net.parameters(), options)?;
    let criterion = NLLLoss::new(());

    for epoch in 1..=steps.unwrap_or(300) {
        let start = Instant::now();
        train_iter(&mut gat_net, &mut optimizer, &criterion, &input, &labels, &idx_train)?;
        let (loss_train, acc_train) = test(&mut gat_net, &criterion, &input, &labels, &idx_train)?;
        let (loss_val, acc_val) = test(&mut gat_net, &criterion, &input, &labels, &idx_val)?;
        if epoch % val_every == 0 {
            println!(
                "Epoch: {epoch:04} ({:.4}s) loss_train: {loss_train:.4} acc_train: {acc_train:.4} \
                 loss_val: {loss_val:.4} acc_val: {acc_val:.4}",
                start.elapsed().as_secs_f64()
            );
        }
    }
    let (loss, acc) = test(&mut gat_net, &criterion, &input, &labels, &idx_test)?;
    println!("Test set results: loss {loss:.4} accuracy {acc:.4}");
    Ok(())
}
