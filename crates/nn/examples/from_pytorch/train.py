import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 32)
        self.out = nn.Linear(32, 4)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))


def data():
    x = torch.rand(256, 8)
    y = (x.sum(1) - 2).clamp(0, 3).long()
    return DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)


def train(device):
    torch.manual_seed(0)
    loader = data()
    net = Net().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=80)
    losses = []
    for _ in range(10):
        for x, y in loader:
            loss = cross_entropy(net(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
        losses.append(loss.item())
    return net, losses


if __name__ == "__main__":
    net, losses = train("cuda" if torch.cuda.is_available() else "cpu")
    print(losses)
    save_file(net.state_dict(), "net.safetensors")
