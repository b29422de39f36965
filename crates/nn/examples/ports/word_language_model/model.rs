//! The recurrent network and the Transformer (`model.py`).

use warpline::functional::log_softmax;
use warpline::{DType, Result, Tensor, arange, expr, ones, zeros};
use warpline_nn::{
    Buffer, Dropout, Embedding, GRU, LSTM, LayerNorm, Linear, Module, RNN, RecurrentOptions,
    TransformerEncoder, TransformerEncoderForwardOptions, TransformerEncoderLayer,
    TransformerEncoderLayerOptions, TransformerEncoderOptions, init,
};

use super::Args;

/// The network between the embedding and the decoder of [`RNNModel`].
#[derive(Debug, Module)]
enum Recurrent {
    LSTM(LSTM),
    GRU(GRU),
    RNN(RNN),
}

impl Recurrent {
    fn forward(&self, x: &Tensor, hidden: &[Tensor]) -> Result<(Tensor, Vec<Tensor>)> {
        let (output, hidden) = match self {
            Self::LSTM(lstm) => {
                let (output, (h, c)) = lstm.forward(x, (&hidden[0], &hidden[1]))?;
                return Ok((output, vec![h, c]));
            }
            Self::GRU(gru) => gru.forward(x, &hidden[0])?,
            Self::RNN(rnn) => rnn.forward(x, &hidden[0])?,
        };
        Ok((output, vec![hidden]))
    }
}

#[derive(Debug, Module)]
pub(crate) struct RNNModel {
    drop: Dropout,
    encoder: Embedding,
    rnn: Recurrent,
    decoder: Linear,
    nhid: usize,
    nlayers: usize,
}

impl RNNModel {
    fn new(ntoken: usize, args: &Args) -> Result<Self> {
        let Args { emsize: ninp, nhid, nlayers, dropout, .. } = *args;
        let options = RecurrentOptions::new().num_layers(nlayers).dropout(dropout);
        let mut model = Self {
            drop: Dropout::new(dropout)?,
            encoder: Embedding::new(ntoken, ninp, ())?,
            rnn: match args.model {
                "LSTM" => Recurrent::LSTM(LSTM::new(ninp, nhid, options)?),
                "GRU" => Recurrent::GRU(GRU::new(ninp, nhid, options)?),
                _ => Recurrent::RNN(RNN::new(ninp, nhid, options)?),
            },
            decoder: Linear::new(nhid, ntoken, ())?,
            nhid,
            nlayers,
        };
        if args.tied {
            model.decoder.weight = model.encoder.weight.clone();
        }
        init_weights(&model.encoder, &model.decoder)?;
        Ok(model)
    }

    fn forward(&self, input: &Tensor, hidden: &[Tensor]) -> Result<(Tensor, Vec<Tensor>)> {
        let emb = self.drop.forward(&self.encoder.forward(input)?)?;
        let (output, hidden) = self.rnn.forward(&emb, hidden)?;
        let decoded = self.decoder.forward(&self.drop.forward(&output)?)?;
        Ok((log_softmax(&decoded.flatten((0, 1))?, 1)?, hidden))
    }

    fn init_hidden(&self, bsz: usize) -> Result<Vec<Tensor>> {
        let states = if matches!(self.rnn, Recurrent::LSTM(_)) { 2 } else { 1 };
        let sizes = (self.nlayers, bsz, self.nhid);
        (0..states).map(|_| self.encoder.weight.new_zeros(sizes, ())).collect()
    }
}

fn init_weights(encoder: &Embedding, decoder: &Linear) -> Result<()> {
    let initrange = 0.1;
    init::uniform_(&encoder.weight, (-initrange, initrange))?;
    if let Some(bias) = &decoder.bias {
        init::zeros_(bias)?;
    }
    init::uniform_(&decoder.weight, (-initrange, initrange))?;
    Ok(())
}

#[derive(Debug, Module)]
struct PositionalEncoding {
    dropout: Dropout,
    pe: Buffer,
}

impl PositionalEncoding {
    fn new(d_model: usize, dropout: f64) -> Result<Self> {
        let max_len = 5000;
        let pe = zeros((max_len, d_model), ())?;
        let position = arange(max_len, DType::F32)?.unsqueeze(1)?;
        let div_term = arange(d_model, DType::F32)?.slice(0, .., 2)?;
        let div_term = expr!((div_term * (-10000f64.ln() / d_model as f64)).exp())?;
        pe.slice(1, .., 2)?.copy_(&expr!((position * div_term).sin())?, ())?;
        pe.slice(1, 1.., 2)?.copy_(&expr!((position * div_term).cos())?, ())?;
        Ok(Self { dropout: Dropout::new(dropout)?, pe: Buffer::new(pe.unsqueeze(1)?) })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.dropout.forward(&expr!(x + self.pe.i(..x.size()[0]))?)
    }
}

#[derive(Debug, Module)]
pub(crate) struct TransformerModel {
    encoder: TransformerEncoder,
    pos_encoder: PositionalEncoding,
    input_emb: Embedding,
    decoder: Linear,
    ninp: usize,
}

impl TransformerModel {
    fn new(ntoken: usize, args: &Args) -> Result<Self> {
        let Args { emsize: ninp, nhead, nhid, nlayers, dropout, .. } = *args;
        let options = TransformerEncoderLayerOptions::new().dim_feedforward(nhid);
        let layer = TransformerEncoderLayer::new(ninp, nhead, options)?;
        let norm = TransformerEncoderOptions::new().norm(LayerNorm::new(ninp, ())?);
        let model = Self {
            encoder: TransformerEncoder::new(&layer, nlayers, norm)?,
            pos_encoder: PositionalEncoding::new(ninp, dropout)?,
            input_emb: Embedding::new(ntoken, ninp, ())?,
            decoder: Linear::new(ninp, ntoken, ())?,
            ninp,
        };
        for p in model.encoder.parameters().iter().filter(|p| p.dim() > 1) {
            init::xavier_uniform_(p, 1.0)?;
        }
        init_weights(&model.input_emb, &model.decoder)?;
        Ok(model)
    }

    fn forward(&self, src: &Tensor) -> Result<Tensor> {
        let sz = src.size()[0];
        let src_mask = ones((sz, sz), src.device())?.tril(0)?.log()?;
        let src = expr!(self.input_emb.forward(src) * (self.ninp as f64).sqrt())?;
        let options = TransformerEncoderForwardOptions::new().mask(&src_mask);
        let output = self.encoder.forward(&self.pos_encoder.forward(&src)?, options)?;
        let output = self.decoder.forward(&output)?;
        log_softmax(&output.flatten((0, 1))?, -1)
    }
}

#[derive(Debug, Module)]
pub(crate) enum Model {
    RNN(RNNModel),
    Transformer(TransformerModel),
}

impl Model {
    pub(crate) fn new(ntoken: usize, args: &Args) -> Result<Self> {
        Ok(match args.model {
            "Transformer" => Self::Transformer(TransformerModel::new(ntoken, args)?),
            _ => Self::RNN(RNNModel::new(ntoken, args)?),
        })
    }

    /// Returns the log-probabilities of the next words, `[time · batch, words]`, and the next hidden state.
    pub(crate) fn forward(
        &self,
        data: &Tensor,
        hidden: &[Tensor],
    ) -> Result<(Tensor, Vec<Tensor>)> {
        match self {
            Self::RNN(model) => model.forward(data, hidden),
            Self::Transformer(model) => Ok((model.forward(data)?, Vec::new())),
        }
    }

    pub(crate) fn init_hidden(&self, bsz: usize) -> Result<Vec<Tensor>> {
        match self {
            Self::RNN(model) => model.init_hidden(bsz),
            Self::Transformer(_) => Ok(Vec::new()),
        }
    }
}
